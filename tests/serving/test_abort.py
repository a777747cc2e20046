"""`/abort_request` ends requests by the id of their answers, and only those of the caller."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from live_server import make_settings
from waiting import until

from seesay.engine.front.engine import AsyncEngine
from seesay.serving.app import create_app

LONG = {"prompt": "hi", "max_tokens": 400, "ignore_eos": True}


@pytest.fixture(scope="module")
def app(engine: AsyncEngine) -> Any:
    return create_app(engine, make_settings(api_keys=["a", "b"]))


def client(app: Any, key: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://x", headers=headers, timeout=60)


@pytest.mark.parametrize(
    ("more", "headers", "asked"),
    [
        ({"rid": "mine"}, {}, {"rid": "mine"}),
        ({"request_id": "mine"}, {}, {"rid": "mine"}),
        ({}, {"x-request-id": "mine"}, {"rid": "mine"}),
        ({}, {}, {"abort_all": True}),
    ],
)
async def test_a_request_is_ended(
    app: Any, more: dict[str, Any], headers: dict[str, str], asked: dict[str, Any]
) -> None:
    answering, owner, stranger = app.state.server.answering, client(app, "a"), client(app, "b")
    running = asyncio.create_task(owner.post("/v1/completions", json={**LONG, **more}, headers=headers))
    await until(lambda: answering.num_running == 1)
    for who, body in ((stranger, asked), (owner, {"rid": "other"})):
        assert (await who.post("/abort_request", json=body)).json() == {"num_aborted": 0}
    assert (await owner.post("/abort_request", json=asked)).json() == {"num_aborted": 1}
    ended = await running
    assert ended.status_code >= 400 and "was aborted" in ended.text
    assert answering.num_running == 0


async def test_a_request_must_be_named(app: Any) -> None:
    assert (await client(app, "a").post("/abort_request", json={})).status_code == 400


async def test_tokens_are_named_by_their_ids(app: Any) -> None:
    http = client(app, "a")
    body: dict[str, Any] = {"prompt": "hi", "max_tokens": 2, "temperature": 0, "return_token_ids": True}
    body["return_tokens_as_token_ids"] = True
    choice = (await http.post("/v1/completions", json={**body, "logprobs": 1})).json()["choices"][0]
    assert choice["logprobs"]["tokens"] == [f"token_id:{number}" for number in choice["token_ids"]]
    assert set(choice["logprobs"]["top_logprobs"][0]) == {choice["logprobs"]["tokens"][0]}
    chat = {**body, "messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 1}
    chat.pop("prompt")
    choice = (await http.post("/v1/chat/completions", json=chat)).json()["choices"][0]
    entries = choice["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == [f"token_id:{number}" for number in choice["token_ids"]]
    assert entries[0]["top_logprobs"][0]["token"] == entries[0]["token"] and entries[0]["bytes"]

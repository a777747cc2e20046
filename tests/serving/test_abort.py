"""`/abort_request` ends requests by the id of their answers, and only those of the caller."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
from typing import Any

import httpx
import pytest
from live_proxy import serve_proxy
from live_server import HeldEngine, make_settings, serve
from waiting import until, wait_until

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
    assert ended.status_code == 499 and "retry-after" not in ended.headers, "clients send a 503 again"
    assert ended.json()["error"] == {
        "message": "the request was aborted", "type": "invalid_request_error", "param": None, "code": "aborted"
    }  # fmt: skip
    assert answering.num_running == 0


USER = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": USER}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/messages", {"messages": USER, "max_tokens": 9}),
        ("/v1/responses", {"input": "hi"}),
    ],
)
def test_a_stream_is_ended_by_the_id_of_its_answer(engine: AsyncEngine, path: str, body: dict[str, Any]) -> None:
    held = HeldEngine(engine)
    with serve(held, make_settings()) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        asked: dict[str, Any] = {**body, "stream": True, "model": "tiny"}
        with http.stream("POST", path, json=asked) as response:
            held.answer({"text": "a", "token_ids": (5,)})
            lines = response.iter_lines()
            event = json.loads(next(line for line in lines if line.startswith("data: ")).removeprefix("data: "))
            event = event.get("response", event.get("message", event))
            answer = httpx.post(f"{server.url}/abort_request", json={"rid": event["id"]}, timeout=60)
            assert answer.json() == {"num_aborted": 1}
            assert "the request was aborted" in "".join(lines)


def test_a_request_behind_a_distributor_is_ended_and_not_begun_again(engine: AsyncEngine) -> None:
    engines = [HeldEngine(engine) for _ in range(2)]
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serve(held, make_settings())) for held in engines]
        proxy = stack.enter_context(serve_proxy([server.url for server in servers]))
        threads = stack.enter_context(concurrent.futures.ThreadPoolExecutor(4))
        running = [threads.submit(proxy.post, messages=USER, model="tiny", rid=f"r{number}") for number in range(4)]
        wait_until(lambda: sum(held.submitted.qsize() for held in engines) == 4)
        assert proxy.post("/abort_request").status_code == 400
        for number in range(4):
            assert proxy.post("/abort_request", rid=f"r{number}").json() == {"num_aborted": 1}
        assert [request.result().status_code for request in running] == [499] * 4
        assert sum(held.submitted.qsize() for held in engines) == 4, "an aborted request was begun again"


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

"""Names of the model: one, several, any; listed as OpenAI's and Anthropic's clients read them."""

from __future__ import annotations

import datetime
from typing import Any

import anthropic
import httpx
import openai
import pytest
from live_server import make_settings, serve

from seesay.cli import make_parser
from seesay.commands.serve.serve_server import make_settings as make_cli_settings
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import ConfigError
from seesay.serving.app import create_app

NAMES = ["tiny", "gpt-4o", "org/tiny-2"]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1},
    "/v1/completions": {"prompt": "hi", "max_tokens": 1},
    "/v1/responses": {"input": "hi", "max_output_tokens": 1},
    "/v1/embeddings": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/chat/interactive": {"prompt": "hi", "request_output_len": 1},
    "/generate": {"prompt": "hi", "max_tokens": 1},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1]},
}


def client_of(engine: AsyncEngine, **options: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=create_app(engine, make_settings(**options)))
    return httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60)


@pytest.mark.parametrize("path", BODIES)
async def test_aliases_and_any_name(engine: AsyncEngine, path: str) -> None:
    aliased = client_of(engine, model_aliases=NAMES[1:])
    for name in NAMES:
        response = await aliased.post(path, json={**BODIES[path], "model": name})
        assert response.status_code == 200, response.text
        assert response.json().get("model", "tiny") == "tiny"  # the name of the model that answered
    unknown = await aliased.post(path, json={**BODIES[path], "model": "other"})
    assert unknown.status_code == 404 and "'tiny', 'gpt-4o', 'org/tiny-2'" in unknown.json()["error"]["message"]
    anything = client_of(engine, any_model_name=True)
    assert (await anything.post(path, json={**BODIES[path], "model": "other"})).status_code == 200


async def test_names_are_listed(engine: AsyncEngine) -> None:
    http = client_of(engine, model_aliases=NAMES[1:])
    assert [card["id"] for card in (await http.get("/v1/models")).json()["data"]] == NAMES
    assert (await http.get("/v1/models/org/tiny-2")).json()["id"] == "org/tiny-2"
    assert (await http.get("/v1/models/other")).status_code == 404
    assert (await client_of(engine, any_model_name=True).get("/v1/models/other")).json()["id"] == "other"


def test_as_the_clients_read_them(engine: AsyncEngine) -> None:
    with serve(engine, make_settings(model_aliases=NAMES[1:])) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as ours:
            assert [model.id for model in ours.models.list()] == NAMES
        with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as claude:
            page = claude.models.list()
            assert [model.id for model in page.data] == NAMES and page.has_more is False
            assert (page.first_id, page.last_id) == (NAMES[0], NAMES[-1])
            info = claude.models.retrieve("gpt-4o")
            assert (info.id, info.type, info.display_name, info.lifecycle) == ("gpt-4o", "model", "gpt-4o", "active")
            age = datetime.datetime.now(datetime.UTC) - info.created_at
            assert datetime.timedelta(0) <= age < datetime.timedelta(hours=1) and info.max_input_tokens == 512
            assert [model.id for model in claude.models.list(limit=1)] == NAMES  # page by page
            before = claude.models.list(limit=1, before_id=NAMES[2])
            assert [model.id for model in before.data] == NAMES[1:2] and before.has_more
            with pytest.raises(anthropic.NotFoundError) as caught:
                claude.models.retrieve("other")
            body: Any = caught.value.body
            assert body == {  # in Anthropic's envelope
                "type": "error",
                "error": {"type": "not_found_error", "message": body["error"]["message"]},
            }
            for params, name in (({"after_id": "other"}, "after_id"), ({"limit": 0}, "limit")):
                with pytest.raises(anthropic.BadRequestError, match=name):
                    claude.models.list(**params)


def test_names_of_the_command_line() -> None:
    parser = make_parser()

    def read(*words: str) -> Any:
        return make_cli_settings(parser.parse_args(["serve", "api_server", *words]))

    settings = read("--model-name", "a", "--model-name", "b", "--model-name", "c", "folder")
    assert (settings.model_name, settings.model_aliases) == ("a", ("b", "c"))
    assert (read().model_name, read().model_aliases, read().any_model_name) == (None, (), False)
    assert read("--any-model-name").any_model_name
    with pytest.raises(ConfigError, match="must not be empty"):
        read("--model-name", "")

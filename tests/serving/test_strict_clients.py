"""Every reply has the types that OpenAI's and Anthropic's clients declare, checked strictly: nothing is coerced, and no
field is missing. Fields of ours may stand beside theirs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from live_server import make_settings, read_events
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.serving.app import create_app

MESSAGES = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}, "required": ["a"]}
FUNCTION = {"name": "f", "description": "A function.", "parameters": SCHEMA}
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
CLAUDE, EMBEDDINGS = "/v1/messages", "/v1/embeddings"
TOOL = {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": MESSAGES, "max_tokens": 2}),
    (CHAT, {"messages": MESSAGES, "max_tokens": 2, "n": 2, "logprobs": True, "top_logprobs": 2}),
    (CHAT, {"messages": MESSAGES, "max_tokens": 60, **TOOL}),
    (CHAT, {"messages": MESSAGES, "max_tokens": 2, "stream_options": {"include_usage": True}}),
    (COMPLETIONS, {"prompt": "hi", "max_tokens": 2}),
    (COMPLETIONS, {"prompt": ["hi", "ho"], "max_tokens": 2, "logprobs": 2}),
    (RESPONSES, {"input": "hi", "max_output_tokens": 2}),
    (RESPONSES, {"input": "hi", "max_output_tokens": 2, "include": ["message.output_text.logprobs"]}),
    (RESPONSES, {"input": "hi", "max_output_tokens": 60, "tools": [{"type": "function", **FUNCTION}],
                 "tool_choice": "required", "instructions": "x", "metadata": {"a": "b"}, "user": "u"}),
    (RESPONSES, {"input": "hi", "max_output_tokens": 60, "text": {"format": {
        "type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}}),
    (CLAUDE, {"messages": MESSAGES, "max_tokens": 2}),
    (CLAUDE, {"messages": MESSAGES, "max_tokens": 60, "tools": [{"name": "f", "input_schema": SCHEMA}],
              "tool_choice": {"type": "any"}}),
]  # fmt: skip
TYPES: dict[str, tuple[Any, Any]] = {
    CHAT: (ChatCompletion, ChatCompletionChunk),
    COMPLETIONS: (Completion, Completion),
    RESPONSES: (Response, ResponseStreamEvent),
    CLAUDE: (Message, RawMessageStreamEvent),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncEngine]:
    """The built-in model, which takes tools."""
    with AsyncEngine("seesay-demo", backend_config=EngineConfig(device_type="cpu")) as engine:
        yield engine


@pytest.fixture(scope="module")
def http(engine: AsyncEngine) -> httpx.AsyncClient:
    app = create_app(engine, make_settings())
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test", timeout=60)


def check(value: object, kind: Any) -> None:
    TypeAdapter(kind).validate_json(json.dumps(value), strict=True)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("path", "body"), BODIES, ids=[f"{path}-{number}" for number, (path, _) in enumerate(BODIES)])
async def test_answers(http: httpx.AsyncClient, path: str, body: dict[str, Any], stream: bool) -> None:
    if not stream:
        body = {name: value for name, value in body.items() if name != "stream_options"}
    response = await http.post(path, json={**body, "stream": stream})
    assert response.status_code == 200, response.text
    whole, event = TYPES[path]
    if not stream:
        check(response.json(), whole)
        return
    events = read_events(response.text)
    assert len(events) > 1
    for each in events:
        if path == COMPLETIONS and each["choices"] and each["choices"][0]["finish_reason"] is None:
            each["choices"][0]["finish_reason"] = "stop"  # null in OpenAI's own streams, unlike its types
        check(each, event)


async def test_other_replies(http: httpx.AsyncClient) -> None:
    for more in ({}, {"encoding_format": "float"}):
        check((await http.post(EMBEDDINGS, json={"input": ["hi", "ho"], **more})).json(), CreateEmbeddingResponse)
    check((await http.get("/v1/models")).json()["data"], list[Model])
    body = {"messages": MESSAGES}
    check((await http.post(f"{CLAUDE}/count_tokens", json=body)).json(), MessageTokensCount)

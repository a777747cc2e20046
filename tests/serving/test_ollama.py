"""Ollama's routes with the built-in model: texts, pictures, calls, lines of JSON, and what describes the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from live_server import make_data_url, make_settings

from seesay.config import EngineConfig
from seesay.demo.scenes import make_example
from seesay.engine.front.engine import AsyncEngine
from seesay.serving.app import create_app
from seesay.serving.errors import ApiError
from seesay.serving.ollama.conversation import make_messages
from seesay.serving.ollama.protocol import ChatTurn

SUM = {"role": "user", "content": "Calculate 3 + 4."}
GREEDY = {"temperature": 0}
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"side": {"enum": ["left"]}}}},
}


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncEngine]:
    """The built-in model."""
    settings = make_settings()
    with AsyncEngine(backend_config=EngineConfig(device_type="cpu"), media_limits=settings.media) as engine:
        yield engine


@pytest.fixture(scope="module")
def client(engine: AsyncEngine) -> httpx.AsyncClient:
    app = create_app(engine, make_settings(unknown_fields="ignore"))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test", timeout=60)


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    response = await client.post(path, json={"model": "tiny", "options": GREEDY, **body})
    assert response.status_code == 200, response.text
    if "ndjson" in response.headers["content-type"]:
        return [json.loads(line) for line in response.text.splitlines()]
    return response.json()


async def test_chat(client: httpx.AsyncClient) -> None:
    whole = await post(client, "/api/chat", messages=[SUM], stream=False, model="tiny:latest")
    assert whole["message"] == {"role": "assistant", "content": "3 + 4 = 7."} and whole["model"] == "tiny:latest"
    assert (whole["done"], whole["done_reason"], whole["eval_count"]) == (True, "stop", 8)
    assert whole["prompt_eval_count"] > 8 and whole["total_duration"] >= whole["eval_duration"] > 0
    lines = await post(client, "/api/chat", messages=[SUM])
    assert "".join(line["message"]["content"] for line in lines) == "3 + 4 = 7."
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1]["eval_count"] == 8 and "eval_count" not in lines[0]


async def test_a_picture(client: httpx.AsyncClient) -> None:
    example = make_example("count", 2_000_001)
    question, answer = example.turns[0]
    images = [make_data_url(image).partition(",")[2] for image in example.images]
    said = await post(
        client, "/api/chat", messages=[{"role": "user", "content": question, "images": images}], stream=False
    )
    assert said["message"]["content"] == answer
    assert (await post(client, "/api/generate", prompt=question, images=images, stream=False))["response"] == answer


async def test_generate(client: httpx.AsyncClient) -> None:
    lines = await post(client, "/api/generate", prompt=SUM["content"])
    assert "".join(line["response"] for line in lines) == "3 + 4 = 7."
    raw = "<|im_start|>user\nCalculate 3 + 4.<|im_end|>\n<|im_start|>assistant\n"
    assert (await post(client, "/api/generate", prompt=raw, raw=True, stream=False))["response"] == "3 + 4 = 7."
    cut = await post(client, "/api/generate", prompt=SUM["content"], stream=False, options={**GREEDY, "num_predict": 2})
    assert cut["done_reason"] == "length" and cut["eval_count"] == 2
    loaded = await post(client, "/api/generate")
    assert (loaded["done"], loaded["done_reason"], loaded["response"]) == (True, "load", "")
    assert (await post(client, "/api/chat", messages=[]))["done_reason"] == "load"


async def test_a_format(client: httpx.AsyncClient) -> None:
    schema = {"type": "object", "properties": {"side": {"enum": ["left"]}}, "required": ["side"]}
    said = await post(client, "/api/chat", messages=[SUM], format=schema, stream=False)
    assert json.loads(said["message"]["content"])["side"] == "left"


async def test_options_without_a_counterpart(client: httpx.AsyncClient) -> None:
    body = {"model": "tiny", "messages": [SUM], "stream": False}
    for options, ignored in (({"num_ctx": 8}, "options.num_ctx"), ({"mirostat": 0, "typical_p": 1.0}, None)):
        response = await client.post("/api/chat", json={**body, "options": {**GREEDY, **options}})
        assert response.status_code == 200 and response.headers.get("x-seesay-ignored") == ignored
    for wrong in ({"options": {"mirostat": 2}}, {"model": "other"}, {"tools": [{"type": "web_search"}]}):
        response = await client.post("/api/chat", json={**body, **wrong})
        assert response.status_code in (400, 404) and list(response.json()) == ["error"]
        assert isinstance(response.json()["error"], str)
    response = await client.post("/api/generate", json={"model": "tiny", "prompt": "x", "context": [1]})
    assert response.status_code == 400 and "context is not supported" in response.json()["error"]


async def test_what_describes_the_model(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    [model] = (await client.get("/api/tags")).json()["models"]
    assert model["name"] == model["model"] == "tiny" and len(model["digest"]) == 64
    assert (await client.get("/api/ps")).json()["models"] == [model]
    shown = (await client.post("/api/show", json={"model": "tiny"})).json()
    assert shown["capabilities"] == ["completion", "vision", "tools"]
    assert shown["model_info"]["qwen2_5_vl.context_length"] == engine.session_len
    assert int((await client.get("/api/version")).json()["version"].split(".")[1]) >= 12
    assert (await client.post("/api/show", json={})).json() == {"error": "the field model is missing"}


def test_results_answer_calls_in_order() -> None:
    call = {"function": {"name": "look", "arguments": {"side": "left"}}}
    other = {"id": "x", "function": {"name": "wait", "arguments": {}}}
    turns = [
        {"role": "assistant", "tool_calls": [call, call, other]},
        {"role": "tool", "content": "c", "tool_name": "wait"},
        {"role": "tool", "content": "a"},
        {"role": "tool", "content": "b", "tool_name": "look"},
    ]
    messages = make_messages([ChatTurn.model_validate(turn) for turn in turns])
    assert [message["tool_call_id"] for message in messages[1:]] == ["x", "call_0_0", "call_0_1"]
    assert messages[0]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"side": "left"}'}
    with pytest.raises(ApiError, match=r"messages\[0\]"):
        make_messages([ChatTurn(role="tool", content="x")])


async def test_tools_are_told(client: httpx.AsyncClient) -> None:
    without = await post(client, "/api/chat", messages=[SUM], stream=False, options={"num_predict": 1})
    told = await post(client, "/api/chat", messages=[SUM], tools=[TOOL], stream=False, options={"num_predict": 1})
    assert told["prompt_eval_count"] > without["prompt_eval_count"] + 20


async def test_errors_name_pictures_as_the_client_does(client: httpx.AsyncClient) -> None:
    pictures = [make_data_url(), "aGVsbG8="]
    turns = [SUM, {"role": "user", "content": "what is this?", "images": pictures}]
    chat = await client.post("/api/chat", json={"model": "tiny", "messages": turns, "stream": False})
    assert chat.status_code == 400 and chat.json()["error"].startswith("messages[1].images[1]: data URL of")
    body = {"model": "tiny", "prompt": "what is this?", "system": "be brief", "images": pictures, "stream": False}
    generated = await client.post("/api/generate", json=body)
    assert generated.status_code == 400 and generated.json()["error"].startswith("images[1]: data URL of")


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "text/plain;charset=UTF-8"])
async def test_bodies_of_any_type_are_json_unless_a_browser_sends_them(
    client: httpx.AsyncClient, kind: str | None
) -> None:
    """Of plugins that call `curl -d`; a page of another origin may send such types without asking first."""
    body = json.dumps({"model": "tiny", "messages": [SUM], "stream": False, "options": GREEDY}).encode()
    headers = {} if kind is None else {"content-type": kind}
    answer = await client.post("/api/chat", content=body, headers=headers)
    assert answer.status_code == 200 and answer.json()["message"]["content"] == "3 + 4 = 7."
    for browsers in ({"origin": "https://example.com"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        refused = await client.post("/api/chat", content=body, headers=headers | browsers)
        assert refused.status_code == 400 and "Content-Type" in refused.text

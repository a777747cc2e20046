"""`--unknown-fields`: ignored, they are named in a header, wherever in the body they are; or refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from cpu_time import check_cpu_s, measure_cpu_s
from live_server import make_data_url, make_settings, serve

from seesay.cli import make_parser
from seesay.commands.serve.serve_server import make_settings as make_cli_settings
from seesay.engine.front.engine import AsyncEngine
from seesay.serving.app import create_app
from seesay.serving.openai.protocol import ChatCompletionRequest
from seesay.serving.requests.unknown_fields import HEADER, drop_unknown, list_names

URL = make_data_url()
PICTURE = {"type": "image_url", "image_url": {"url": URL, "zoom": 2}, "cache_control": {"type": "ephemeral"}}
SOURCE = {"type": "base64", "media_type": "image/png", "data": URL.partition(",")[2], "size": 3}

# Bodies with unknown fields, and where these are.
CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "/v1/chat/completions": (
        {
            "messages": [
                {"role": "user", "content": [PICTURE, {"type": "text", "text": "hi", "lang": "en"}], "mood": "good"},
            ],
            "max_tokens": 1, "guided_odd": ["a"], "stream": True, "best_of": 3,
            "stream_options": {"include_usage": True, "odd": 1},
        },
        ["messages[0].content[0].image_url.zoom", "messages[0].content[0].cache_control",
         "messages[0].content[1].lang", "messages[0].mood", "guided_odd", "best_of", "stream_options.odd"],
    ),
    "/v1/completions": ({"prompt": "hi", "max_tokens": 1, "odd": None}, ["odd"]),
    "/v1/responses": (
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x", "odd": 1}], "tone": 1}],
         "max_output_tokens": 1},
        ["input[0].content[0].odd", "input[0].tone"],
    ),
    "/v1/embeddings": ({"input": "hi", "odd": 1}, ["odd"]),
    "/v1/messages": (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": SOURCE, "odd": 1}], "id": "m"}],
         "max_tokens": 1, "metadata": {"user_id": "u", "odd": 1}, "top_a": 1},
        ["messages[0].content[0].source.size", "messages[0].content[0].odd", "messages[0].id", "metadata.odd", "top_a"],
    ),
    "/v1/chat/interactive": ({"prompt": "hi", "request_output_len": 1, "odd": 1}, ["odd"]),
    "/generate": ({"prompt": "hi", "max_tokens": 1, "odd": 1}, ["odd"]),
    "/tokenize": ({"messages": [{"role": "user", "content": "x", "odd": 1}]}, ["messages[0].odd"]),
    "/detokenize": ({"tokens": [1], "odd": 1}, ["odd"]),
}  # fmt: skip


def client_of(engine: AsyncEngine, **options: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=create_app(engine, make_settings(**options)))
    return httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60)


@pytest.mark.parametrize("path", CASES)
async def test_ignored_fields_are_named(engine: AsyncEngine, http: httpx.AsyncClient, path: str) -> None:
    body, places = CASES[path]
    response = await client_of(engine, unknown_fields="ignore").post(path, json=body)
    assert response.status_code == 200, response.text
    assert sorted(response.headers[HEADER].split(", ")) == sorted(places)
    refused = await http.post(path, json=body)
    assert refused.status_code == 400 and HEADER not in refused.headers


TOOL = {"type": "function", "function": {"name": "f"}}
FLAT_TOOL = {"type": "function", "name": "f"}
HI = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
SAY = {"input": "hi", "max_output_tokens": 1}
FORMS = ("/v1/chat/completions", HI), ("/v1/responses", SAY), ("/v1/messages", HI)
# Hints that change no answer, by route; and the values that are no hints because they mean what happens anyway.
HINTS: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "/v1/chat/completions": (
        {"service_tier": "flex", "store": True, "verbosity": "low", "prediction": {"type": "content", "content": "x"},
         "reasoning_effort": "high", "stream": True, "stream_options": {"include_obfuscation": True}},
        {"service_tier": "auto", "store": False, "user": "u", "metadata": {}, "safety_identifier": "s",
         "prompt_cache_key": "k", "reasoning_effort": "none"},
        ["service_tier", "store", "verbosity", "prediction", "reasoning_effort", "stream_options.include_obfuscation"],
    ),
    "/v1/responses": (
        {"service_tier": "flex", "truncation": "auto", "include": ["reasoning.encrypted_content"],
         "context_management": [{"type": "compaction"}], "text": {"verbosity": "low"}, "max_tool_calls": 3,
         "reasoning": {"effort": "high", "summary": "detailed"}},
        {"service_tier": "default", "truncation": "disabled", "include": [], "reasoning": {"summary": "auto"},
         "parallel_tool_calls": True},
        ["service_tier", "truncation", "include.reasoning.encrypted_content", "context_management", "text.verbosity",
         "max_tool_calls", "reasoning.effort", "reasoning.summary"],
    ),
    "/v1/messages": (
        {"service_tier": "priority", "cache_control": {"type": "ephemeral", "ttl": "1h"}, "speed": "fast",
         "context_management": {"edits": []}, "thinking": {"type": "enabled", "budget_tokens": 9},
         "output_config": {"effort": "high"}},
        {"service_tier": "auto", "cache_control": {"type": "ephemeral"}, "metadata": {"user_id": "u"}},
        ["service_tier", "cache_control", "speed", "context_management", "thinking.budget_tokens",
         "output_config.effort"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("path", HINTS)
async def test_hints_are_ignored(engine: AsyncEngine, http: httpx.AsyncClient, path: str) -> None:
    hints, neutral, places = HINTS[path]
    hi = dict(FORMS)[path]
    client = client_of(engine, unknown_fields="ignore")
    response = await client.post(path, json={**hi, **hints})
    assert response.status_code == 200, response.text
    assert sorted(name for name in response.headers[HEADER].split(", ")) == sorted(places)
    response = await client.post(path, json={**hi, **neutral})
    assert response.status_code == 200 and HEADER not in response.headers, response.text
    assert (await http.post(path, json={**hi, **hints})).status_code == 400
    metrics = (await client.get("/metrics")).text
    assert f'seesay_ignored_fields_total{{endpoint="{path}"}} {len(places)}.0' in metrics


@pytest.mark.parametrize("path", HINTS)
async def test_server_tools_are_left_out_beside_functions(engine: AsyncEngine, path: str) -> None:
    client, hi = client_of(engine, unknown_fields="ignore"), dict(FORMS)[path]
    own = {"/v1/chat/completions": TOOL, "/v1/responses": FLAT_TOOL}.get(path, {"name": "f", "input_schema": {}})
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    response = await client.post(path, json={**hi, "tools": [search, own], "tool_choice": None})
    # The engine's template takes no tools: what is refused is the function that is left.
    assert response.status_code == 400 and "does not support tools" in response.text
    assert response.headers[HEADER] == "tools[0].web_search_20250305"
    alone = await client.post(path, json={**hi, "tools": [search]})
    assert alone.status_code == 400 and "web_search_20250305" in alone.text


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/chat/completions", {"modalities": ["audio"]}),
        ("/v1/chat/completions", {"web_search_options": {}}),
        ("/v1/chat/completions", {"functions": [{"name": "f"}]}),
        ("/v1/responses", {"prompt": {"id": "p"}}),
        ("/v1/messages", {"mcp_servers": [{"type": "url"}]}),
        ("/v1/messages", {"container": "c"}),
    ],
)
async def test_what_would_change_the_answer_is_refused(engine: AsyncEngine, path: str, field: dict[str, Any]) -> None:
    response = await client_of(engine, unknown_fields="ignore").post(path, json={**dict(FORMS)[path], **field})
    assert response.status_code == 400 and next(iter(field)) in response.json()["error"]["message"]


async def test_nothing_else_is_taken(engine: AsyncEngine) -> None:
    http = client_of(engine, unknown_fields="ignore")
    hi = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    fine = await http.post("/v1/chat/completions", json=hi)
    assert fine.status_code == 200 and HEADER not in fine.headers
    for wrong in ({"tools": [{"type": "function"}]}, {"temperature": 9}, {"messages": [{"role": "robot"}]}):
        response = await http.post("/v1/chat/completions", json={**hi, **wrong, "odd": 1})
        assert response.status_code == 400 and "odd" in response.headers[HEADER]
    kept = {"chat_template_kwargs": {"anything": {"at": "all"}}}
    assert HEADER not in (await http.post("/v1/chat/completions", json={**hi, **kept})).headers


def test_names_cannot_break_the_header(engine: AsyncEngine) -> None:
    names = ['a"\r\nset-cookie: x', "ü\ud800", "x" * 10_000, *map(str, range(20))]
    numbers = ", ".join(map(str, range(13)))
    assert list_names(names) == f"a???set-cookie??x, ??, {'x' * 80}, {numbers} and 7 more"
    with serve(engine, make_settings(unknown_fields="ignore")) as server:
        response = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1, 'a"\r\nb': 1})
    assert response.headers[HEADER] == "a???b"


def test_it_takes_linear_time() -> None:
    def drop(number: int) -> None:
        parts = [{"type": "text", "text": "x", "odd": 1} for _ in range(number)]
        names = drop_unknown({"messages": [{"role": "user", "content": parts}]}, ChatCompletionRequest)
        assert len(names) == number

    # Eight times as many fields. A search through the names so far for each of them would take sixty times as long.
    check_cpu_s(lambda: drop(16_000), 16 * measure_cpu_s(lambda: drop(2_000)))


def test_the_option() -> None:
    parser = make_parser()
    for words, expected in (([], "ignore"), (["--unknown-fields", "refuse"], "refuse")):
        assert make_cli_settings(parser.parse_args(["serve", "api_server", *words])).unknown_fields == expected


async def test_a_tool_as_responses_have_it_is_told_where_its_name_stands(engine: AsyncEngine) -> None:
    """Beside the type it is an unknown field."""
    app = create_app(engine, make_settings(unknown_fields="ignore"))
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "name": "look"}]}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400 and answer.headers[HEADER] == "tools[0].name"
    assert "must be an object with a name (in /v1/responses it stands beside the type)" in answer.text


@pytest.mark.parametrize(
    ("name", "value", "other"),
    [
        ("messages", [{"role": "user", "content": "x"}], "input"),
        ("max_tokens", 5, "max_output_tokens"),
        ("max_completion_tokens", 5, "max_output_tokens"),
        ("response_format", {"type": "json_object"}, "text.format"),
    ],
)
async def test_fields_that_have_another_name_in_responses_are_not_ignored(
    engine: AsyncEngine, name: str, value: object, other: str
) -> None:
    """They would change the answer."""
    app = create_app(engine, make_settings(unknown_fields="ignore"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        answer = await client.post("/v1/responses", json={"input": "x", name: value})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == name
    assert error["message"].startswith(f"{name} is not supported: use {other}; got")


async def test_a_tool_as_chats_have_it_is_told_where_its_name_stands(engine: AsyncEngine) -> None:
    app = create_app(engine, make_settings(unknown_fields="ignore"))
    body = {"input": "x", "tools": [{"type": "function", "function": {"name": "look"}}]}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        answer = await client.post("/v1/responses", json=body)
    assert answer.status_code == 400 and answer.headers[HEADER] == "tools[0].function"
    assert "tools[0].name is missing (in /v1/chat/completions it stands inside of function)" in answer.text

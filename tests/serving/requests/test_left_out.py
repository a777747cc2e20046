"""What a lenient schema does not hold is said in a header of the answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.serving.app import create_app
from seesay.serving.requests.left_out import HEADER, show_left_out
from seesay.serving.settings import ServerSettings

pytest.importorskip("llguidance")

SCHEMA = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True, "items": {"type": "string"}}}}
MESSAGES = [{"role": "user", "content": "hi"}]


def form(strict: bool) -> dict[str, Any]:
    return {"type": "json_schema", "schema": SCHEMA, "strict": strict}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1, "response_format": form(False)}),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 1, "response_format": form(False)}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 1, "text": {"format": form(False)}}),
        ("/generate", {"prompt": "hi", "max_tokens": 1, "response_format": form(False)}),
    ],
)
async def test_what_is_left_out_is_named(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], stream: bool
) -> None:
    response = await http.post(path, json={**body, "stream": stream})
    assert response.status_code == 200, response.text
    assert "uniqueItems" in response.headers[HEADER] and "properties.a" in response.headers[HEADER]


async def test_nothing_is_named_where_all_is_held(http: httpx.AsyncClient) -> None:
    held = {**form(False), "schema": {"type": "object", "properties": {"a": {"type": "string"}}}}
    body = {"messages": MESSAGES, "max_tokens": 1, "response_format": held}
    assert HEADER not in (await http.post("/v1/chat/completions", json=body)).headers
    refused = await http.post("/v1/chat/completions", json={**body, "response_format": form(True)})
    assert refused.status_code == 400 and HEADER not in refused.headers


def test_the_header_is_short_and_plain() -> None:
    shown = show_left_out(tuple(f"not at $.é\n{number}" for number in range(20)))
    assert shown.startswith("not at $.??0, ") and shown.endswith(" and 4 more")


@pytest.fixture(scope="module")
def demo() -> Iterator[httpx.AsyncClient]:
    """A client of the built-in model, which calls functions."""
    with AsyncEngine("seesay-demo", backend_config=EngineConfig(device_type="cpu")) as engine:
        app = create_app(engine, ServerSettings(any_model_name=True))
        yield httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test", timeout=60)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 1}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 1}),
        ("/api/chat", {"model": "tiny", "messages": MESSAGES, "options": {"num_predict": 1}}),
    ],
)
async def test_schemas_are_written_by_the_process_of_trials_alone(
    demo: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any], stream: bool
) -> None:
    """One of a hard schema would keep the event loop of all keys from answering."""

    def write(*_: object, **__: object) -> None:
        raise AssertionError("the server writes a schema")

    for module in ("json_program", "holding"):
        monkeypatch.setattr(f"seesay.grammars.schemas.{module}.write_json", write)
    monkeypatch.setattr("seesay.grammars.schemas.json_program.rewrite_schema", write)
    tool = {"name": "f", "parameters": SCHEMA}
    if path == "/v1/messages":
        tool = {"name": "f", "input_schema": SCHEMA}
    elif path != "/v1/responses":
        tool = {"type": "function", "function": tool}
    body = {**fields, "tools": [{"type": "function", **tool} if path == "/v1/responses" else tool], "stream": stream}
    response = await demo.post(path, json=body)
    assert response.status_code == 200, response.text
    assert "uniqueItems at tools[0]." in response.headers[HEADER]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_a_refused_schema_is_an_error_before_the_answer_begins(
    demo: httpx.AsyncClient, path: str, stream: bool
) -> None:
    given: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 1}
    function: dict[str, Any] = {"name": "f", "strict": True}
    if path == "/v1/messages":
        body, where = {**given, "tools": [{**function, "input_schema": SCHEMA}]}, "tools[0].input_schema"
    elif path == "/v1/responses":
        given = {"input": "hi", "max_output_tokens": 1}
        body, where = (
            {**given, "tools": [{"type": "function", **function, "parameters": SCHEMA}]},
            "tools[0].parameters",
        )
    else:
        tool = {"type": "function", "function": {**function, "parameters": SCHEMA}}
        body, where = {**given, "tools": [tool]}, "tools[0].function.parameters"
    refused = await demo.post(path, json={**body, "stream": stream})
    assert refused.status_code == 400 and HEADER not in refused.headers
    error = refused.json()["error"]
    assert error["message"].startswith(f"{where}: schema at $.properties.a: ") and error.get("param", where) == where


CONTRADICTIONS: dict[str, dict[str, Any]] = {
    "not named": {"type": "object", "properties": {"a": {}}, "required": ["b"], "additionalProperties": False},
    "false": {"type": "object", "properties": {"a": {}, "b": False}, "required": ["b"]},
    "no number": {
        "type": "object", "properties": {"b": {"type": "integer", "minimum": 5, "maximum": 3}}, "required": ["b"]
    },
}  # fmt: skip


def make_function(name: str, parameters: dict[str, Any], strict: bool | None) -> dict[str, Any]:
    own = {} if strict is None else {"strict": strict}
    return {"type": "function", "function": {"name": name, "parameters": parameters, **own}}


@pytest.mark.parametrize("strict", [None, False])
@pytest.mark.parametrize("name", CONTRADICTIONS)
async def test_a_function_whose_arguments_cannot_be_is_left_out_unless_it_is_strict_or_forced(
    demo: httpx.AsyncClient, name: str, strict: bool | None
) -> None:
    good = make_function("g", {"type": "object", "properties": {"x": {"type": "integer"}}}, None)
    tools = [good, make_function("f", CONTRADICTIONS[name], strict)]
    body: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 1, "tools": tools}
    response = await demo.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    assert response.headers[HEADER] == "schema at tools[1].function.parameters"
    forced = {**body, "tool_choice": {"type": "function", "function": {"name": "f"}}}
    held = {**body, "tools": [*tools, make_function("s", CONTRADICTIONS[name], True)]}
    for refused, place in ((forced, "tools[1]"), (held, "tools[2]")):
        response = await demo.post("/v1/chat/completions", json=refused)
        assert response.status_code == 400 and HEADER not in response.headers
        assert response.json()["error"]["message"].startswith(f"{place}.function.parameters: schema at $")


async def test_a_schema_of_the_answer_beside_tools_is_held_as_far_as_it_says(demo: httpx.AsyncClient) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    body: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 1, "tools": tools}
    response = await demo.post("/v1/chat/completions", json={**body, "response_format": form(False)})
    assert response.status_code == 200, response.text
    assert response.headers[HEADER] == "uniqueItems at $.properties.a"
    refused = await demo.post("/v1/chat/completions", json={**body, "response_format": form(True)})
    assert refused.status_code == 400 and HEADER not in refused.headers
    assert refused.json()["error"]["param"] == "response_format", refused.text

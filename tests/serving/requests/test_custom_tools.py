"""Custom tools of OpenAI's APIs: calls with a text that follows a grammar, over a real server, by OpenAI's client."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from live_server import MODEL, LiveServer, serve
from openai.types.responses import ResponseCustomToolCall
from templates.tool_templates import HERMES, XML

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.serving.requests.custom_tools import CustomCalls, read_text, write_arguments
from seesay.templates.parsers.parts import AnswerPart, CallArguments, CallEnd, CallStart, join_parts

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
SUM = 'start: NUMBER ("\\n" "+" NUMBER)~1..2\nNUMBER: "\\"" "7".."9" "\\""'
"""Of texts that JSON spells in another way."""
SUM_PATTERN = re.compile(r'"[7-9]"(\n\+"[7-9]"){1,2}')
LARK = {"type": "grammar", "syntax": "lark", "definition": SUM}
DATE = {"type": "grammar", "syntax": "regex", "definition": r"20[0-9]{2}-0[1-9]"}
ADD = {"type": "custom", "name": "add", "description": "Adds.", "format": LARK}
LOOK = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
}
HI: Any = [{"role": "user", "content": "Is it there?"}]


def nest(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool in the form of chat completions."""
    fields = {key: value for key, value in tool.items() if key != "type"}
    if fields.get("format", {}).get("type") == "grammar":
        inner = {key: value for key, value in fields["format"].items() if key != "type"}
        fields["format"] = {"type": "grammar", "grammar": inner}
    return {"type": tool["type"], tool["type"]: fields}


@pytest.fixture(scope="module", params=["hermes", "xml"])
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """The built-in model with templates whose calls are JSON, and whose arguments stand between tags."""
    template = Path(tmp_path_factory.mktemp("templates")) / "template.jinja"
    template.write_text({"hermes": HERMES, "xml": XML}[request.param])
    config = EngineConfig(session_len=2048, device_type="cpu")
    parser = None if request.param == "hermes" else "qwen3_coder"
    engine = AsyncEngine(
        "seesay-demo", backend_config=config, chat_template_config=str(template), tool_call_parser=parser
    )
    with engine, serve(engine) as server:
        yield server


@pytest.fixture
def client(live: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{live.url}/v1", api_key="x", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


def test_a_response_calls_a_custom_tool_with_a_text_of_its_grammar(
    client: openai.OpenAI, request: pytest.FixtureRequest
) -> None:
    """Whole, streamed, and answered in the next turn: by the stored response, and by items that are sent back."""
    tools: Any = [ADD, LOOK]
    limits: Any = {"model": MODEL, "tools": tools, "parallel_tool_calls": False, "temperature": 0}
    choice: Any = {"type": "custom", "name": "add"}
    first = client.responses.create(input="Is it there?", tool_choice=choice, **limits)
    [call] = first.output
    assert isinstance(call, ResponseCustomToolCall) and call.name == "add" and first.status == "completed"
    assert SUM_PATTERN.fullmatch(call.input)
    assert first.tools[0].type == "custom" and first.tools[0].format and first.tools[0].format.type == "grammar"
    with client.responses.stream(input="Is it there?", tool_choice=choice, **limits) as stream:
        events = list(stream)
        [streamed] = stream.get_final_response().output
    assert isinstance(streamed, ResponseCustomToolCall) and streamed.input == call.input
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == call.input
    assert len(deltas) > 3 or request.node.callspec.params["live"] == "xml"  # whose values come whole
    done = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert [event.input for event in done] == [call.input] and done[0].item_id == streamed.id
    result: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "16"}
    stored = client.responses.create(input=[result], previous_response_id=first.id, max_output_tokens=9, **limits)
    sent: list[Any] = [*HI, *first.output, result]
    again = client.responses.create(input=sent, max_output_tokens=9, **limits)
    assert again.usage and stored.usage and again.usage.input_tokens == stored.usage.input_tokens
    assert again.output_text == stored.output_text
    items = client.responses.input_items.list(stored.id, order="asc").data
    assert [item.type for item in items] == ["message", "custom_tool_call", "custom_tool_call_output"]
    assert getattr(items[1], "input") == call.input  # noqa: B009 - a union of types


def test_a_chat_calls_a_custom_tool_and_gets_its_result(client: openai.OpenAI, live: LiveServer) -> None:
    tools: Any = [nest(ADD), nest(LOOK)]
    choice: Any = {"type": "custom", "custom": {"name": "add"}}
    limits: Any = {"model": MODEL, "tools": tools, "parallel_tool_calls": False, "temperature": 0}
    answer = client.chat.completions.create(messages=HI, tool_choice=choice, **limits)
    message = answer.choices[0].message
    assert message.tool_calls and answer.choices[0].finish_reason == "tool_calls"
    [call] = message.tool_calls
    assert call.type == "custom" and call.custom.name == "add" and SUM_PATTERN.fullmatch(call.custom.input)
    body = {**limits, "messages": HI, "tool_choice": choice, "stream": True}
    pieces: list[str] = []
    for event in live.post(CHAT, body).text.splitlines():
        if event.startswith("data: {"):
            for delta in json.loads(event[6:])["choices"][0]["delta"].get("tool_calls", ()):
                assert "function" not in delta
                pieces.append(delta["custom"]["input"])
    assert "".join(pieces) == call.custom.input and pieces[0] == ""
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "16"}
    as_function: Any = {
        "role": "assistant",
        "tool_calls": [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": "add", "arguments": write_arguments(call.custom.input)},
            }
        ],
    }
    counts = [
        client.chat.completions.create(messages=[*HI, turn, result], max_tokens=5, **limits).usage
        for turn in (message, as_function)
    ]
    assert counts[0] and counts[1] and counts[0].prompt_tokens == counts[1].prompt_tokens


@pytest.mark.parametrize("form", [DATE, {"type": "text"}, None])
def test_formats_of_custom_tools(live: LiveServer, form: Any) -> None:
    tool = {"type": "custom", "name": "say", **({} if form is None else {"format": form})}
    names = [{"type": "custom", "name": "say"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": names}
    body = {"input": "Is it there?", "tools": [LOOK, tool], "tool_choice": choice, "temperature": 1}
    answer = live.post(RESPONSES, {**body, "parallel_tool_calls": False, "max_output_tokens": 60})
    assert answer.status_code == 200, answer.text
    call = answer.json()["output"][-1]
    assert (call["type"], call["name"]) == ("custom_tool_call", "say")
    if form == DATE:
        assert re.fullmatch(DATE["definition"], call["input"])


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (RESPONSES, {"tools": [{"type": "custom"}]}, "tools[0].name"),
    (RESPONSES, {"tools": [{**ADD, "format": {"type": "odd"}}]}, "tools[0].format"),
    (RESPONSES, {"tools": [{**ADD, "format": {"type": "grammar"}}]}, "tools[0].format"),
    (RESPONSES, {"tools": [{**ADD, "format": {**LARK, "syntax": "gbnf"}}]}, "tools[0].format"),
    (RESPONSES, {"tools": [{**ADD, "format": {**LARK, "definition": "start: a"}}]}, "tools[0].format"),
    (RESPONSES, {"tools": [{**ADD, "format": {**DATE, "definition": "(?=a)"}}]}, "tools[0].format"),
    (CHAT, {"tools": [nest({**ADD, "format": {**LARK, "definition": "start: <x>"}})]},
     "tools[0].custom.format.grammar"),
    (CHAT, {"tools": [nest(ADD)], "tool_choice": {"type": "function", "function": {"name": "add"}}},
     "tool_choice.function.name"),
    (CHAT, {"tools": [nest(ADD)], "tool_choice": {"type": "custom", "custom": {"name": "other"}}},
     "tool_choice.custom.name"),
    (CHAT, {"messages": [*HI, {"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "x",
            "input": 3}}]}, {"role": "tool", "tool_call_id": "a", "content": "x"}]},
     "messages[1].tool_calls[0].custom.input"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "param"), REFUSED)
def test_faults_are_named(live: LiveServer, path: str, fields: dict[str, Any], param: str) -> None:
    body = {"messages": HI} if path == CHAT else {"input": "x"}
    answer = live.post(path, {**body, **fields})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


class _Recorded:
    """A parser whose calls have arguments that are cut in pieces of a size."""

    def __init__(self, arguments: str, size: int) -> None:
        self._pieces = [arguments[at : at + size] for at in range(0, len(arguments), size)]

    def feed(self, text: str) -> list[AnswerPart]:
        return [CallStart(0, text), *(CallArguments(0, piece) for piece in self._pieces)]

    def finish(self) -> list[AnswerPart]:
        return [CallEnd(0)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "a\\n\\"\\\\ \\u00e9\\ud83d\\ude00\\/é😀"}', 'a\n"\\ é😀/é😀'),
        ('  {\n"input" :"" }', ""),
        ('{"input": "\\ud83d\\u0041 \\udc00"}', "?A ?"),
        ('{"other": 1, "input": "x"}', "x"),
        ('{"input": 5}', '{"input": 5}'),
        ("[1]", "[1]"),
    ],
)
def test_the_text_of_a_call_is_read_in_pieces_of_any_size(size: int, arguments: str, text: str) -> None:
    parser = CustomCalls(_Recorded(arguments, size), {"add"})
    parts = join_parts([*parser.feed("add"), *parser.finish()])
    assert parts == [CallStart(0, "add", takes_text=True), *([CallArguments(0, text)] if text else []), CallEnd(0)]
    other = CustomCalls(_Recorded(arguments, size), {"add"})
    assert join_parts([*other.feed("look"), *other.finish()])[1] == CallArguments(0, arguments)
    assert read_text(write_arguments(text)) == text

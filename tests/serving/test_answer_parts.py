"""Thoughts, texts and calls of an answer, given out by each API whatever the pieces are in which the text comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai_schemas as schemas
import pytest
from live_server import HeldEngine, LiveServer, read_events, serve
from templates.tool_templates import HERMES

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.values import Usage

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
THOUGHT, TEXT, ARGUMENTS = "It may be there.", "I look.", '{"side": "left", "far": true}'
CALL = f'<tool_call>\n{{"name": "look", "arguments": {ARGUMENTS}}}\n</tool_call>'
ANSWER = f"<think>\n{THOUGHT}\n</think>\n\n{TEXT}\n{CALL}"
SCHEMA = {"type": "object", "properties": {"side": {"type": "string"}, "far": {"type": "boolean"}}}
# Not strict: without a grammar, so that the text may be any.
FUNCTION = {"name": "look", "parameters": SCHEMA, "strict": False}
HI = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HI, "tools": [{"type": "function", "function": FUNCTION}]},
    RESPONSES: {"input": "hi", "tools": [{"type": "function", **FUNCTION}]},
    MESSAGES: {
        "messages": HI, "max_tokens": 99, "tools": [{"name": "look", "input_schema": SCHEMA, "strict": False}],
    },
}  # fmt: skip


class Talk:
    """A server whose answers are given by hand."""

    def __init__(self, live: LiveServer, engine: HeldEngine) -> None:
        self._live, self._engine = live, engine
        self._pool = ThreadPoolExecutor(1)

    def ask(
        self,
        path: str,
        text: str,
        *,
        size: int | None = None,
        reason: str = "stop",
        begins: bool = False,
        **fields: Any,
    ) -> httpx.Response:
        """The response to a request that is answered by `text`, in deltas of `size` characters."""
        body = {**BODIES[path], "stream": size is not None, **fields}
        response: Future[httpx.Response] = self._pool.submit(self._live.post, path, body)
        pieces = [text[i : i + size] for i in range(0, len(text), size)] if size else [text]
        deltas: list[dict[str, Any]] = [{"text": piece, "is_thinking": begins} for piece in pieces]
        deltas[-1] |= {"finish_reason": reason, "usage": Usage(prompt_tokens=3, completion_tokens=9)}
        self._engine.answer(*deltas)
        found = response.result(60)
        assert found.status_code == 200, found.text
        return found


@pytest.fixture(scope="module")
def talk(tiny_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talk]:
    template = Path(tmp_path_factory.mktemp("templates")) / "hermes.jinja"
    template.write_text(HERMES + "{#- <think> -#}")
    config = EngineConfig(session_len=1024, device_type="cpu", block_size=16)
    path = str(tiny_checkpoint("qwen2_5_vl"))
    with AsyncEngine(path, backend_config=config, chat_template_config=str(template)) as engine:
        held = HeldEngine(engine)
        with serve(held) as live:
            yield Talk(live, held)


def join_chat(text: str) -> dict[str, Any]:
    """The message that the deltas of a stream make, with its finish reason."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for event in read_events(text):
        schemas.check(event, schemas.CHAT_CHUNK)
        [choice] = event["choices"]
        for name in ("content", "reasoning_content"):
            message[name] += choice["delta"].get(name) or ""
        for call in choice["delta"].get("tool_calls", ()):
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append(dict(call["function"]))
            else:
                message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
        message["finish_reason"] = choice["finish_reason"]
    return message


@pytest.mark.parametrize("size", [None, 1, 7, 1000])
def test_chat(talk: Talk, size: int | None) -> None:
    response = talk.ask(CHAT, ANSWER, size=size)
    if size is None:
        schemas.check(response.json(), schemas.CHAT_COMPLETION)
        [choice] = response.json()["choices"]
        message = {**choice["message"], "finish_reason": choice["finish_reason"]}
        message["tool_calls"] = [call["function"] for call in message["tool_calls"]]
    else:
        message = join_chat(response.text)
    assert (message["content"], message["reasoning_content"]) == (TEXT, THOUGHT)
    assert message["tool_calls"] == [{"name": "look", "arguments": ARGUMENTS}]
    assert message["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("size", [None, 1, 7, 1000])
def test_responses(talk: Talk, size: int | None) -> None:
    response = talk.ask(RESPONSES, ANSWER, size=size)
    if size is None:
        found = response.json()
    else:
        events = read_events(response.text)
        found = events[-1]["response"]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        for number, item in enumerate(found["output"]):
            mine = [event for event in events if event.get("output_index") == number]
            assert mine[0]["type"] == "response.output_item.added" and mine[-1]["item"] == item
            joined = "".join(event["delta"] for event in mine if event["type"].endswith(".delta"))
            assert joined == item.get("arguments", joined)
            assert all(joined == part["text"] for part in item.get("content", ()))
    schemas.check(found, schemas.RESPONSE)
    thought, message, call = found["output"]
    assert thought["type"] == "reasoning" and thought["content"][0]["text"] == THOUGHT
    assert message["type"] == "message" and message["content"][0]["text"] == TEXT
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "look", ARGUMENTS)
    assert found["status"] == "completed"


@pytest.mark.parametrize("size", [None, 1, 7, 1000])
def test_messages(talk: Talk, size: int | None) -> None:
    response = talk.ask(MESSAGES, ANSWER, size=size)
    if size is None:
        blocks, reason = response.json()["content"], response.json()["stop_reason"]
    else:
        blocks = []
        for event in read_events(response.text):
            if event["type"] == "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append({**event["content_block"], "joined": ""})
            elif event["type"] == "content_block_delta":
                delta = event["delta"]
                kind = {"thinking_delta": "thinking", "text_delta": "text", "input_json_delta": "partial_json"}
                blocks[event["index"]]["joined"] += delta[kind[delta["type"]]]
            elif event["type"] == "message_delta":
                reason = event["delta"]["stop_reason"]
    thought, message, call = blocks
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"] and reason == "tool_use"
    if size is None:
        assert (thought["thinking"], message["text"]) == (THOUGHT, TEXT)
        assert call["input"] == {"side": "left", "far": True} and call["name"] == "look"
    else:
        assert [block["joined"] for block in blocks] == [THOUGHT, TEXT, ARGUMENTS]


@pytest.mark.parametrize("size", [None, 3])
def test_a_malformed_call_is_content(talk: Talk, size: int | None) -> None:
    broken = CALL.replace('"far"', "far")
    response = talk.ask(CHAT, broken, size=size)
    message = response.json()["choices"][0] if size is None else join_chat(response.text)
    content = message["message"]["content"] if size is None else message["content"]
    assert content == broken and message["finish_reason"] == "stop"


@pytest.mark.parametrize("size", [None, 3])
def test_one_call_at_most(talk: Talk, size: int | None) -> None:
    response = talk.ask(CHAT, f"{CALL}\n{CALL}", size=size, parallel_tool_calls=False)
    if size is None:
        assert len(response.json()["choices"][0]["message"]["tool_calls"]) == 1
    else:
        assert len(join_chat(response.text)["tool_calls"]) == 1
    twice = talk.ask(CHAT, f"{CALL}\n{CALL}").json()["choices"][0]["message"]["tool_calls"]
    assert len({call["id"] for call in twice}) == 2


def test_calls_are_text_where_no_tool_may_be_called(talk: Talk) -> None:
    choice = talk.ask(CHAT, CALL, tool_choice="none").json()["choices"][0]
    assert choice["message"]["content"] == CALL and choice["finish_reason"] == "stop"


@pytest.mark.parametrize("size", [None, 2])
def test_an_answer_that_begins_inside_its_thought(talk: Talk, size: int | None) -> None:
    response = talk.ask(CHAT, f"{THOUGHT}\n</think>\n\n{TEXT}", size=size, begins=True, tools=None)
    message = response.json()["choices"][0]["message"] if size is None else join_chat(response.text)
    assert (message["content"], message["reasoning_content"]) == (TEXT, THOUGHT)


def test_a_thought_that_is_cut_off(talk: Talk) -> None:
    choice = talk.ask(CHAT, f"<think>{THOUGHT}", reason="length", tools=None).json()["choices"][0]
    assert choice["message"]["content"] == "" and choice["message"]["reasoning_content"] == THOUGHT
    found = talk.ask(RESPONSES, f"<think>{THOUGHT}", reason="length", tools=None).json()
    assert [(item["type"], item["status"]) for item in found["output"]] == [("reasoning", "incomplete")]


def test_thoughts_are_sent_back(talk: Talk) -> None:
    """In the form of each API, and calls beside them."""
    first = talk.ask(RESPONSES, ANSWER).json()
    call = first["output"][-1]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "x"}
    talk.ask(RESPONSES, "well", input=[{"role": "user", "content": "hi"}, *first["output"], result])
    talk.ask(RESPONSES, "well", input=[result], previous_response_id=first["id"])
    message = talk.ask(MESSAGES, ANSWER).json()["content"]
    block = {"type": "tool_result", "tool_use_id": message[-1]["id"], "content": "x"}
    turns = [*HI, {"role": "assistant", "content": message}, {"role": "user", "content": [block]}]
    talk.ask(MESSAGES, "well", messages=turns)
    said = talk.ask(CHAT, ANSWER).json()["choices"][0]["message"]
    answered = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "x"}
    talk.ask(CHAT, "well", messages=[*HI, said, answered])

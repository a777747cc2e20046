"""The message of a chat completion, whole or as the deltas of a stream, made of the parts of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seesay.serving.openai.wire import make_id
from seesay.serving.requests.answer_reading import AnswerReading, ReadAnswer
from seesay.templates.parsers.parts import AnswerPart, CallArguments, CallEnd, CallStart, ContentText, ReasoningText
from seesay.values import OutputDelta


def make_message(answer: ReadAnswer, *, begin: str = "") -> dict[str, Any]:
    """Return the message of the assistant, whose content begins with `begin`. Content is null where there are calls and
    no text."""
    text = begin + answer.content
    content = text if text or not answer.calls else None
    message: dict[str, object] = {"role": "assistant", "content": content, "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [
            {"id": make_id("call_"), **_make_call(call.name, call.arguments, takes_text=call.takes_text)}
            for call in answer.calls
        ]
    return message


def _make_call(name: str, text: str, *, takes_text: bool) -> dict[str, object]:
    if takes_text:
        return {"type": "custom", "custom": {"name": name, "input": text}}
    return {"type": "function", "function": {"name": name, "arguments": text}}


def find_finish_reason(finish_reason: str, *, has_calls: bool) -> str:
    """Return the finish reason of an answer: that of the engine, or 'tool_calls' where the answer ended with calls."""
    return "tool_calls" if has_calls and finish_reason == "stop" else finish_reason


def make_stop_field(last: OutputDelta) -> dict[str, str]:
    """Return the extension of a choice that says that repetition ended it, where it did."""
    return {"stop_reason": "repetition"} if last.stop_reason == "repetition" else {}


class MessageStream:
    """The deltas of one streamed message."""

    def __init__(self, reading: AnswerReading, *, is_thinking: bool) -> None:
        self._parser = reading.open(is_thinking=is_thinking)
        self.has_calls = False
        self._custom: set[int] = set()

    def feed(self, delta: OutputDelta) -> list[dict[str, Any]]:
        """Return the deltas that the engine's `delta` makes, its final one included."""
        parts = self._parser.feed(delta.text)
        if delta.finish_reason is not None:
            parts += self._parser.finish()
        return self._make_deltas(parts)

    def _make_deltas(self, parts: Sequence[AnswerPart]) -> list[dict[str, object]]:
        deltas: list[dict[str, object]] = []
        for part in parts:
            match part:
                case ContentText():
                    deltas.append({"content": part.text})
                case ReasoningText():
                    deltas.append({"reasoning_content": part.text})
                case CallStart():
                    self.has_calls = True
                    if part.takes_text:
                        self._custom.add(part.index)
                    call = _make_call(part.name, "", takes_text=part.takes_text)
                    deltas.append({"tool_calls": [{"index": part.index, "id": make_id("call_"), **call}]})
                case CallArguments():
                    is_custom = part.index in self._custom
                    piece = {"custom": {"input": part.text}} if is_custom else {"function": {"arguments": part.text}}
                    deltas.append({"tool_calls": [{"index": part.index, **piece}]})
                case CallEnd():
                    pass
        return deltas

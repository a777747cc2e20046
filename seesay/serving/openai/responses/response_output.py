"""The output of a response: its items, made of the parts of an answer, and the events that announce them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from seesay.serving.openai.wire import make_id
from seesay.templates.parsers.parts import AnswerPart, CallArguments, CallEnd, CallStart, ContentText, ReasoningText

Status = Literal["completed", "incomplete"]
MakeEvent = Callable[..., bytes]
"""Makes the event of a type (without `response.`) and its fields."""

_CALLS = {
    "function_call": ("arguments", "function_call_arguments", "fc_"),
    "custom_tool_call": ("input", "custom_tool_call_input", "ctc_"),
}
"""By the type of an item: the field of its text, the events about that, the prefix of its id."""
_TEXT_NAMES = {"message": "output_text", "reasoning": "reasoning_text"}


def make_no_event(_kind: str, **_fields: object) -> bytes:
    """Drop an event, for a response that is not streamed."""
    return b""


class OutputWriter:
    """Makes the items of one response while its answer arrives. `items` are those that are complete."""

    def __init__(self, make_event: MakeEvent, make_item_id: Callable[[str, int], str]) -> None:
        """`make_item_id`: of the prefix and the number of an item."""
        self._make_event = make_event
        self._make_id = make_item_id
        self.items: list[dict[str, Any]] = []
        self._item: dict[str, Any] | None = None
        self._pieces: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    def write(self, part: AnswerPart, logprobs: Sequence[dict[str, object]] = ()) -> list[bytes]:
        """Add a part of the answer, with the log-probabilities of its tokens if it is text, and return its events."""
        match part:
            case ContentText():
                return self._write_text("message", part.text, logprobs)
            case ReasoningText():
                return self._write_text("reasoning", part.text, ())
            case CallStart():
                kind = "custom_tool_call" if part.takes_text else "function_call"
                field, _, prefix = _CALLS[kind]
                call = {"call_id": make_id("call_"), "name": part.name, field: ""}
                return [*self.end(), *self._begin(prefix, {"type": kind, **call})]
            case CallArguments():
                assert self._item is not None
                self._pieces.append(part.text)
                _, event, _ = _CALLS[self._item["type"]]
                return [self._make_event(f"{event}.delta", **self._place, delta=part.text)]
            case CallEnd():
                return self.end()

    def end(self, status: Status = "completed") -> list[bytes]:
        """End the item that is open, and return its events."""
        if self._item is None:
            return []
        text = "".join(self._pieces)
        if self._item["type"] in _CALLS:
            field, event, _ = _CALLS[self._item["type"]]
            named = {"name": self._item["name"]} if field == "arguments" else {}
            events = [self._make_event(f"{event}.done", **self._place, **named, **{field: text})]
            item = {**self._item, field: text}
        else:
            name = _TEXT_NAMES[self._item["type"]]
            part = _make_part(name, text, self._logprobs)
            logprobs = {"logprobs": self._logprobs} if name == "output_text" else {}
            events = [
                self._make_event(f"{name}.done", **self._place, content_index=0, text=text, **logprobs),
                self._make_event("content_part.done", **self._place, content_index=0, part=part),
            ]
            item = {**self._item, "content": [part]}
        item["status"] = status
        events.append(self._make_event("output_item.done", output_index=len(self.items), item=item))
        self.items.append(item)
        self._item, self._pieces, self._logprobs = None, [], []
        return events

    def finish(self, status: Status) -> list[bytes]:
        """End the output. One that is empty gets an empty message."""
        events = [] if self.items or self._item is not None else self._write_text("message", "", ())
        return [*events, *self.end(status)]

    @property
    def _place(self) -> dict[str, Any]:
        assert self._item is not None
        return {"item_id": self._item["id"], "output_index": len(self.items)}

    def _write_text(
        self, kind: Literal["message", "reasoning"], text: str, logprobs: Sequence[dict[str, Any]]
    ) -> list[bytes]:
        events: list[bytes] = []
        name = _TEXT_NAMES[kind]
        if self._item is None or self._item["type"] != kind:
            events += self.end()
            if kind == "message":
                events += self._begin("msg_", {"type": kind, "role": "assistant", "content": []})
            else:
                events += self._begin("rs_", {"type": kind, "summary": [], "content": []})
            part = _make_part(name, "", [])
            events.append(self._make_event("content_part.added", **self._place, content_index=0, part=part))
        if text or logprobs:
            self._pieces.append(text)
            self._logprobs += logprobs
            more = {"logprobs": list(logprobs)} if name == "output_text" else {}
            events.append(self._make_event(f"{name}.delta", **self._place, content_index=0, delta=text, **more))
        return events

    def _begin(self, prefix: str, item: dict[str, Any]) -> list[bytes]:
        """Begin an item, whose id has this prefix."""
        self._item = {"id": self._make_id(prefix, len(self.items)), **item}
        begun = {**self._item, "status": "in_progress"}
        return [self._make_event("output_item.added", output_index=len(self.items), item=begun)]


def _make_part(name: str, text: str, logprobs: list[dict[str, object]]) -> dict[str, Any]:
    if name == "reasoning_text":
        return {"type": name, "text": text}
    return {"type": name, "text": text, "annotations": [], "logprobs": logprobs}

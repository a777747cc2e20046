"""The content blocks of an answer in Anthropic's form, made of the parts of an answer, and the events that stream
them."""

from __future__ import annotations

import secrets
from typing import Any

from pydantic_core import from_json

from seesay.serving.http.streaming import make_event
from seesay.templates.parsers.parts import AnswerPart, CallArguments, CallEnd, CallStart, ContentText, ReasoningText


class BlockWriter:
    """Makes the blocks of one answer while it arrives. `blocks` are those that are complete."""

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._block: dict[str, Any] | None = None
        self._pieces: list[str] = []

    @property
    def has_calls(self) -> bool:
        """Whether the answer has a complete call."""
        return any(block["type"] == "tool_use" for block in self.blocks)

    def write(self, part: AnswerPart) -> list[bytes]:
        """Add a part of the answer, and return its events."""
        match part:
            case ContentText():
                begun = self._begin({"type": "text", "text": ""})
                return [*begun, self._add(part.text, {"type": "text_delta", "text": part.text})]
            case ReasoningText():
                begun = self._begin({"type": "thinking", "thinking": "", "signature": ""})
                return [*begun, self._add(part.text, {"type": "thinking_delta", "thinking": part.text})]
            case CallStart():
                ended = self.end()
                block = {"type": "tool_use", "id": f"toolu_{secrets.token_hex(12)}", "name": part.name, "input": {}}
                return [*ended, *self._begin(block)]
            case CallArguments():
                return [self._add(part.text, {"type": "input_json_delta", "partial_json": part.text})]
            case CallEnd():
                return self.end()

    def end(self) -> list[bytes]:
        """End the block that is open, and return its event."""
        if self._block is None:
            return []
        text, index = "".join(self._pieces), len(self.blocks)
        filled: dict[str, object]
        if self._block["type"] == "tool_use":
            filled = {"input": _read_input(text)}
        else:
            filled = {"thinking" if self._block["type"] == "thinking" else "text": text}
        self.blocks.append({**self._block, **filled})
        self._block, self._pieces = None, []
        return [_make_event({"type": "content_block_stop", "index": index})]

    def _begin(self, block: dict[str, Any]) -> list[bytes]:
        """Begin `block`, unless one of its type is open."""
        if self._block is not None and self._block["type"] == block["type"]:
            return []
        ended = self.end()
        self._block = block
        start = {"type": "content_block_start", "index": len(self.blocks), "content_block": block}
        return [*ended, _make_event(start)]

    def _add(self, text: str, delta: dict[str, object]) -> bytes:
        self._pieces.append(text)
        return _make_event({"type": "content_block_delta", "index": len(self.blocks), "delta": delta})


def _read_input(text: str) -> dict[str, object]:
    """Return the input of a call. One that was cut off has the values that are complete."""
    value = from_json(text or "{}", allow_partial=True)
    return value if isinstance(value, dict) else {}


def _make_event(data: dict[str, Any]) -> bytes:
    return make_event(data, name=data["type"])

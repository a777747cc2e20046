"""Collects the parts of an answer while it is read, and decides when they are handed out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seesay.templates.parsers.parts import (
    AnswerPart,
    CallArguments,
    CallEnd,
    CallStart,
    ContentText,
    ReasoningText,
    join_parts,
)
from seesay.templates.parsers.text_source import ArrivedText, MalformedError

MAX_NAME_CHARS = 256


@dataclass(frozen=True, slots=True)
class CallableTools:
    """The functions that the model may call, as chat completions have them."""

    tools: Sequence[Mapping[str, object]]

    def __bool__(self) -> bool:
        return bool(self.tools)

    def schema_of(self, name: str) -> Mapping[str, Any]:
        """Return the JSON Schema of a function's arguments; an empty one if it is not known."""
        schema = next((one.get("parameters") for one in self._functions() if one.get("name") == name), None)
        return schema if isinstance(schema, Mapping) else {}

    def may_be_loose(self, name: str) -> bool:
        """Return whether there is a function of this name that is not strict."""
        return any(one.get("name") == name and not one.get("strict") for one in self._functions())

    def _functions(self) -> Iterator[Mapping[str, Any]]:
        return (one for tool in self.tools if isinstance(one := tool.get("function"), Mapping))


class CallSink:
    """The parts of one answer.

    num_calls: calls that have ended. has_text: whether there was text for the reader of the answer.
    tools: the functions that the model may call.
    streams_calls: hand out a call as it is read. Otherwise a call is handed out once it is complete, so that a
        malformed one can become content.
    takes_loose: whether a call may also stand where the format has none (`start_call`).
    """

    def __init__(self, arrived: ArrivedText, *, streams_calls: bool, tools: CallableTools, takes_loose: bool) -> None:
        self._arrived = arrived
        self._takes_loose = takes_loose
        self.has_text = False
        self._streams_calls = streams_calls
        self.tools = tools
        self._parts: list[AnswerPart] = []
        self._held: list[AnswerPart] = []
        self._space: list[str] = []
        self._gap = ""
        self.num_calls = 0
        self._is_open = False
        self._is_held = False

    def take(self) -> list[AnswerPart]:
        """Return the parts that were not handed out yet."""
        parts, self._parts = self._parts, []
        return join_parts(parts)

    # --- text ---------------------------------------------------------------------------------------------------------

    def add_content(self, text: str) -> None:
        """Add text. White space at its end is held: it is content only if text follows."""
        self._arrived.forget_taken()
        self._add_text(text, ContentText)

    def add_reasoning(self, text: str) -> None:
        self._arrived.forget_taken()
        self._add_text(text, ReasoningText)

    def drop_space(self) -> None:
        """Leave out white space that stands beside a marker. It is content only between two texts that nothing else
        parts: those before and behind a call."""
        if self.has_text and self._space:
            self._gap = "".join(self._space)
        self._space.clear()

    def flush_space(self, kind: type[ContentText | ReasoningText]) -> None:
        if self._space:
            self._parts.append(kind("".join(self._space)))
            self._space.clear()

    def _add_text(self, text: str, kind: type[ContentText | ReasoningText]) -> None:
        end = len(text.rstrip())
        if end:
            if self._gap and not self._space and not text[0].isspace():
                self._space.append(self._gap)
            self._gap = ""
            self.has_text |= kind is ContentText
            self.flush_space(kind)
            self._parts.append(kind(text[:end]))
        if end < len(text):
            self._space.append(text[end:])

    # --- calls --------------------------------------------------------------------------------------------------------

    def start_call(self, name: str, *, is_loose: bool = False) -> None:
        """Begin a call. is_loose: its text is not where the format has calls, so that no grammar holds it. It is handed
        out once it is complete, and only a function of the request that is not strict is called so. Raises
        MalformedError for a text that cannot be a function's name."""
        if not name or len(name) > MAX_NAME_CHARS or not name.isprintable() or name != name.strip():
            raise MalformedError
        if is_loose and not (self._takes_loose and self.tools.may_be_loose(name)):
            raise MalformedError
        self._is_open = True
        self._is_held = is_loose
        self._add(CallStart(self.num_calls, name))

    def add_arguments(self, text: str) -> None:
        self._add(CallArguments(self.num_calls, text))

    def end_call(self) -> None:
        """End a call, after all of its text was read. It can become content no more."""
        self._add(CallEnd(self.num_calls))
        self._parts += self._held
        self._held.clear()
        self.num_calls += 1
        self._is_open = False
        self.drop_space()
        self._arrived.forget_taken()

    def reject_call(self) -> None:
        """Turn everything read since the last call into content. A call that was already emitted stays as it is,
        without an end, and the rest of its text is dropped: it was cut off."""
        text = self._arrived.taken()
        self._arrived.forget_taken()
        self._held.clear()
        if self._is_open and self._streams_calls and not self._is_held:
            self._is_open = False
            self.num_calls += 1
            return
        self._is_open = False
        self._add_text(text, ContentText)

    def _add(self, part: AnswerPart) -> None:
        is_streamed = self._streams_calls and not self._is_held
        if is_streamed:
            self.drop_space()
        (self._parts if is_streamed else self._held).append(part)

"""Calls that are JSON objects with a name and arguments, between markers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from seesay.templates.parsers import json_text
from seesay.templates.parsers.call_sink import CallSink
from seesay.templates.parsers.call_syntax import CallSyntax, Function, Piece, json_form, regex_form
from seesay.templates.parsers.text_source import MalformedError, TextSource, Waiting
from seesay.templates.parsers.tool_format import ToolFormat

_ARGUMENTS = "arguments"
_ARGUMENT_KEYS = (_ARGUMENTS, "parameters")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectCalls(ToolFormat):
    """`begin` {"name": …, "arguments": {…}} `end`, for each call.

    arguments_key: the name that the model was trained with; any of two is read. gap: white space inside of the markers.
    variants: other spellings of `begin`, which are read and never written.
    """

    begin: str
    end: str
    arguments_key: str = "arguments"
    gap: str = "\n"
    variants: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.begin, *self.variants)

    @property
    def tokens(self) -> tuple[str, ...]:
        return (self.begin, self.end)

    def read(self, source: TextSource, sink: CallSink) -> Waiting[None]:
        for variant in self.variants:
            if (yield from source.try_read(variant)):
                break
        else:
            yield from source.expect(self.begin)
        yield from source.skip_space()
        yield from read_call_object(source, sink)
        yield from source.skip_space()
        yield from source.expect_or_end(self.end)
        sink.end_call()

    def write(self, functions: Sequence[Function]) -> CallSyntax:
        return CallSyntax(
            begin=f"{self.begin}{self.gap}",
            calls=[write_call_object(function, self.arguments_key) for function in functions],
            end=f"{self.gap}{self.end}",
            separator=f"{self.gap}{self.end}\n{self.begin}{self.gap}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCalls(ToolFormat):
    """`begin` [{"name": …, "arguments": {…}}, …]: calls in a JSON array."""

    begin: str

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.begin,)

    def read(self, source: TextSource, sink: CallSink) -> Waiting[None]:
        yield from source.expect(self.begin)
        yield from source.skip_space()
        yield from self.read_list(source, sink)

    def read_list(self, source: TextSource, sink: CallSink, *, is_loose: bool = False) -> Waiting[None]:
        """Read the array. is_loose: it is not where the format has calls."""
        yield from source.expect("[")
        while True:
            yield from source.skip_space()
            yield from read_call_object(source, sink, is_bare=is_loose, is_loose=is_loose)
            yield from source.skip_space()
            is_last = yield from source.try_read("]")
            if not is_last:
                yield from source.expect(",")
            sink.end_call()
            if is_last:
                return

    def write(self, functions: Sequence[Function]) -> CallSyntax:
        return CallSyntax(
            begin=f"{self.begin} [",
            calls=[write_call_object(function, "arguments") for function in functions],
            end="]",
            separator=", ",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BareObjectCalls(ToolFormat):
    """The whole answer is {"name": …, "parameters": {…}}, or several with semicolons, commas or white space between
    them, or a JSON array of them; perhaps behind a marker. The name comes first, or behind a type, for an answer may be
    other JSON. Calls with text around them are read, too."""

    marker: str

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.marker, "{")

    @property
    def begins_answer(self) -> bool:
        return True

    def read(self, source: TextSource, sink: CallSink) -> Waiting[None]:
        is_marked = yield from source.try_read(self.marker)
        is_loose = not is_marked and sink.has_text
        yield from source.skip_space()
        if (yield from source.starts_with("[")):
            yield from LISTED.read_list(source, sink, is_loose=True)
            return
        while True:
            yield from source.skip_space()
            yield from read_call_object(source, sink, is_bare=True, is_loose=is_loose)
            sink.end_call()
            between = yield from _take_between(source)
            if not (yield from source.starts_with("{")):
                if (yield from source.peek()):
                    sink.add_content(between)
                return

    def write(self, functions: Sequence[Function]) -> CallSyntax:
        return CallSyntax(
            begin="",
            calls=[write_call_object(function, "parameters") for function in functions],
            separator="; ",
            free=regex_form(_OTHER_TEXT),
        )


def _take_between(source: TextSource) -> Waiting[str]:
    """Read what may stand between two calls and return it."""
    pieces: list[str] = []
    yield from source.skip_space(pieces.append)
    for separator in (";", ","):
        if (yield from source.try_read(separator)):
            pieces.append(separator)
            break
    yield from source.skip_space(pieces.append)
    return "".join(pieces)


def write_call_object(function: Function, arguments_key: str) -> list[Piece]:
    head = f'{{"name": {json.dumps(function.name, ensure_ascii=False)}, "{arguments_key}": '
    return [head, json_form(function.schema), "}"]


def _write_other_text(literal: str) -> str:
    """Return an expression for the texts that do not begin with `literal`, with white space before it or behind its
    first character."""
    rest = r"[\s\S]*"
    written = ""
    for index, char in reversed(list(enumerate(literal))):
        space = r"\s*" if index < 2 else ""
        other = rf"[^\s{re.escape(char)}]" if space else f"[^{re.escape(char)}]"
        inner = f"|{re.escape(char)}{written}" if written else ""
        written = f"{space}(?:{other}{rest}{inner})?"
    return written


_OTHER_TEXT = _write_other_text('{"name"')


def read_call_object(
    source: TextSource, sink: CallSink, *, is_bare: bool = False, is_loose: bool = False
) -> Waiting[None]:
    """Read an object with a name and arguments, in any order, and other keys, which say nothing. Arguments may also be
    the text of an object in a JSON string. is_bare: the name must come first, or behind a type, and arguments must be
    there. is_loose: it is not where the format has calls."""
    yield from source.expect("{")
    seen = set[str]()
    late = "{}"  # arguments that are passed on behind the name
    has_more = True
    while has_more:
        key = yield from _take_key(source, seen, is_bare=is_bare)
        if key == "name":
            sink.start_call((yield from json_text.take_string(source)), is_loose=is_loose)
        elif key != _ARGUMENTS:
            yield from json_text.read_value(source, lambda _: None)
        elif "name" in seen and (yield from source.peek()) == "{":
            late = ""
            yield from json_text.read_object(source, sink.add_arguments)
        else:
            late = yield from _take_arguments(source)
        yield from source.skip_space()
        has_more = yield from source.try_read(",")
    yield from source.expect("}")
    if "name" not in seen or (is_bare and _ARGUMENTS not in seen):
        raise MalformedError
    if late:
        sink.add_arguments(late)


def _take_key(source: TextSource, seen: set[str], *, is_bare: bool) -> Waiting[str]:
    """Return the key that comes next, the same for arguments under any name, and read its colon. `seen` are the keys
    before, to which it is added."""
    yield from source.skip_space()
    key = yield from json_text.take_string(source)
    key = _ARGUMENTS if key in _ARGUMENT_KEYS else key
    is_early = is_bare and "name" not in seen and key not in ("name", "type")
    if is_early or (key in ("name", _ARGUMENTS) and key in seen):
        raise MalformedError
    seen.add(key)
    yield from source.skip_space()
    yield from source.expect(":")
    yield from source.skip_space()
    return key


def _take_arguments(source: TextSource) -> Waiting[str]:
    """Return the text of the arguments that come before the name, or in a string, or are null."""
    if (yield from source.try_read("null")):
        return "{}"
    text = yield from json_text.take_text(source)
    if text.startswith('"'):
        text = json.loads(text)
    if not json_text.is_object(text):
        raise MalformedError
    return text


HERMES = ObjectCalls(begin="<tool_call>", end="</tool_call>")
INTERNLM2 = ObjectCalls(
    begin="<|action_start|><|plugin|>",
    end="<|action_end|>",
    arguments_key="parameters",
    gap="",
    variants=("<|action_start|> <|plugin|>",),
)
LISTED = ListedCalls(begin="[TOOL_CALLS]")
LLAMA_JSON = BareObjectCalls(marker="<|python_tag|>")

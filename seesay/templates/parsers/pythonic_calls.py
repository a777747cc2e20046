"""Calls as Python writes them: `[name(key=value, …), …]`, read as data and never run."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from seesay.templates.parsers import json_text
from seesay.templates.parsers.arguments import Argument, list_arguments, takes_any
from seesay.templates.parsers.call_sink import MAX_NAME_CHARS, CallSink
from seesay.templates.parsers.call_syntax import (
    CallSyntax,
    Form,
    Function,
    Piece,
    json_form,
    optional_form,
    or_form,
    regex_form,
    sequence_form,
)
from seesay.templates.parsers.literals import Literals, write_arguments
from seesay.templates.parsers.text_source import MalformedError, TextSource, Waiting
from seesay.templates.parsers.tool_format import ToolFormat

_WORD = re.compile(r"[A-Za-z0-9_.\-]+")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_PLAIN = {quote: re.compile(rf"[^{quote}\\\n]+") for quote in "'\""}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\\": "\\", "'": "'", '"': '"', "/": "/"}
_HEX = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonicCalls(ToolFormat):
    """`begin` `[` calls `]` `end`; or, without brackets, one call in each pair of markers.

    With `is_bare` calls may also be the whole answer, without markers. One in brackets that cannot be read is text, and
    those behind it are read.
    """

    begin: str
    end: str
    open: str = "["
    close: str = "]"
    is_bare: bool

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.begin,)

    @property
    def begins_answer(self) -> bool:
        return self.is_bare

    @property
    def tokens(self) -> tuple[str, ...]:
        return (self.begin, self.end)

    def read(self, source: TextSource, sink: CallSink) -> Waiting[None]:
        is_marked = yield from source.try_read(self.begin)
        yield from source.skip_space()
        yield from source.expect(self.open)
        while True:
            yield from source.skip_space()
            name = yield from source.read_up_to(_WORD, MAX_NAME_CHARS)
            yield from source.expect("(")
            try:
                yield from _read_arguments(source, sink, name)
            except MalformedError:
                if self.open != "[":
                    raise
                yield from _skip_call(source, sink)
                continue
            yield from source.skip_space()
            is_last = yield from source.try_read(self.close)
            if is_last:
                yield from source.skip_space()
                if is_marked:
                    yield from source.expect_or_end(self.end)
                elif (yield from source.peek()):
                    raise MalformedError
            elif self.open == "[":
                yield from source.expect(",")
            elif not _WORD.match((yield from source.peek())):
                raise MalformedError
            sink.end_call()
            if is_last:
                return

    def write(self, functions: Sequence[Function]) -> CallSyntax:
        marks = ("", "") if self.is_bare else (self.begin, self.end)
        begin = marks[0] + ("[" if self.is_bare else f"\n{self.open}\n")
        end = ("]" if self.is_bare else f"\n{self.close}\n") + marks[1]
        return CallSyntax(
            begin=begin,
            calls=[_write_call(function) for function in functions],
            end=end,
            separator=", " if self.is_bare else "\n",
            free=regex_form(_OTHER_TEXT) if self.is_bare else None,
        )


def _read_arguments(source: TextSource, sink: CallSink, name: str) -> Waiting[None]:
    sink.start_call(name)
    sink.add_arguments("{")
    yield from source.skip_space()
    is_first = True
    while not (yield from source.try_read(")")):
        if not is_first:
            yield from source.expect(",")
            yield from source.skip_space()
        key = yield from source.read_up_to(_WORD, MAX_NAME_CHARS)
        if not key:
            raise MalformedError
        yield from source.skip_space()
        yield from source.expect("=")
        yield from source.skip_space()
        value = yield from _LITERALS.read(source)
        sink.add_arguments(f"{'' if is_first else ', '}{json.dumps(key)}: {value}")
        is_first = False
        yield from source.skip_space()
    sink.add_arguments("}")


def _skip_call(source: TextSource, sink: CallSink) -> Waiting[None]:
    """Make a call that cannot be read content, with the comma behind it. Raises MalformedError where no other call
    follows."""
    is_followed = False
    while not is_followed:
        if (yield from source.read_until([")"], lambda _: None)) is None:
            raise MalformedError
        yield from source.expect(")")
        yield from source.skip_space()
        if (yield from source.starts_with("]")):
            raise MalformedError
        is_followed = yield from source.try_read(",")
    sink.reject_call()


def _read_key(source: TextSource) -> Waiting[str]:
    return json.dumps((yield from _read_string(source)), ensure_ascii=False)


def _read_scalar(source: TextSource) -> Waiting[str]:
    char = yield from source.peek()
    if char and char in "'\"":
        return json.dumps((yield from _read_string(source)), ensure_ascii=False)
    if char and char in "-0123456789":
        pieces: list[str] = []
        yield from json_text.read_value(source, pieces.append)
        return "".join(pieces)
    word = yield from source.read_up_to(_WORD, MAX_NAME_CHARS)
    if word not in _WORDS:
        raise MalformedError
    return _WORDS[word]


def _read_string(source: TextSource) -> Waiting[str]:
    quote = yield from source.peek()
    if not quote or quote not in "'\"":
        raise MalformedError
    yield from source.expect(quote)
    pieces: list[str] = []
    while not (yield from source.try_read(quote)):
        yield from source.read_while(_PLAIN[quote], pieces.append)
        if (yield from source.try_read("\\")):
            pieces.append((yield from _read_escape(source)))
        elif not (yield from source.starts_with(quote)):
            raise MalformedError
    # Two escapes of one character, as JSON writes those beyond 16 bits.
    return "".join(pieces).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _read_escape(source: TextSource) -> Waiting[str]:
    char = yield from source.peek()
    if not char or char not in "ntrbf\\'\"/xuU":
        raise MalformedError
    yield from source.expect(char)
    if char in _ESCAPES:
        return _ESCAPES[char]
    digits = ""
    while len(digits) < _HEX[char]:
        digit = yield from source.peek()
        if not digit or digit not in "0123456789abcdefABCDEF":
            raise MalformedError
        yield from source.expect(digit)
        digits += digit
    if int(digits, 16) > 0x10FFFF:
        raise MalformedError
    return chr(int(digits, 16))


_LITERALS = Literals(brackets={"[": "]", "{": "}", "(": ")"}, read_key=_read_key, read_scalar=_read_scalar)


# --- grammar ----------------------------------------------------------------------------------------------------------


def _write_call(function: Function) -> list[Piece]:
    if takes_any(function.schema):
        pair: list[Piece] = [regex_form("[A-Za-z_][A-Za-z0-9_]{0,63}"), "=", json_form(True)]
        more: Form = {"type": "star", "content": sequence_form([", ", *pair])}
        return [f"{function.name}(", optional_form([*pair, more]), ")"]
    return [f"{function.name}(", *write_arguments(list_arguments(function.schema), _write_pair, ", "), ")"]


def _write_pair(argument: Argument) -> list[Piece]:
    schema = argument.schema
    if isinstance(schema, dict) and schema.get("type") == "boolean" and not schema.keys() & {"enum", "const"}:
        return [f"{argument.name}=", or_form(["True", "False"])]
    return [f"{argument.name}=", json_form(schema)]


_OTHER_TEXT = (
    r"\s*(?:[^\s\[][\s\S]*|\[\s*(?:[^\sA-Za-z0-9_.\-][\s\S]*|[A-Za-z0-9_.\-]+(?:[^(A-Za-z0-9_.\-][\s\S]*)?)?)?"
)
"""Answers that do not begin like a list of calls."""

PYTHONIC = PythonicCalls(begin="<|python_start|>", end="<|python_end|>", is_bare=True)
MINICPM = PythonicCalls(
    begin="<|tool_call_start|>", end="<|tool_call_end|>", open="```python", close="```", is_bare=False
)

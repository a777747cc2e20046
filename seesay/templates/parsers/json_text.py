"""Read JSON as it arrives, strictly: what is accepted here is accepted by every JSON parser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from seesay.templates.parsers.text_source import ArrivedText, MalformedError, TextSource, Waiting

MAX_DEPTH = 256
_MAX_NUMBER_CHARS = 4000
"""Longer numbers are refused by some JSON parsers, Python's among them."""
_MAX_KEY_CHARS = 1 << 16
_SPACE = " \t\r\n"

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_NUMBER_CHARS = re.compile(r"[-+.0-9eE]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_HEX_DIGITS = re.compile(r"[0-9a-fA-F]{1,4}")

Emit = Callable[[str], None]


def read_object(source: TextSource, emit: Emit) -> Waiting[None]:
    """Read a JSON object and emit its text. Raises MalformedError where it is not one."""
    if (yield from source.peek()) != "{":
        raise MalformedError
    yield from read_value(source, emit)


def read_value(source: TextSource, emit: Emit) -> Waiting[None]:
    """Read a JSON value and emit its text. Raises MalformedError at the first character that cannot be."""
    ends: list[str] = []  # of the arrays and objects that are open, innermost last
    while True:
        opened = yield from _read_opening(source, emit)
        if opened:
            ends.append(opened)
            if len(ends) > MAX_DEPTH:
                raise MalformedError
            yield from _space(source, emit)
            if (yield from source.peek()) != opened:
                yield from _read_key(source, emit, opened)
                continue
        # A value is complete: close what ends here.
        while ends:
            yield from _space(source, emit)
            if not (yield from source.try_read(ends[-1])):
                break
            emit(ends.pop())
        if not ends:
            return
        yield from source.expect(",")
        emit(",")
        yield from _space(source, emit)
        yield from _read_key(source, emit, ends[-1])


def read_string(source: TextSource, emit: Emit) -> Waiting[None]:
    """Read a JSON string and emit its text, with its quotes."""
    yield from source.expect('"')
    emit('"')
    while True:
        yield from source.read_while(_PLAIN, emit)
        char = yield from source.peek()
        if char == '"':
            yield from source.expect(char)
            emit(char)
            return
        yield from source.expect("\\")
        escaped = yield from source.peek()
        if not escaped or escaped not in '"\\/bfnrtu':
            raise MalformedError
        yield from source.expect(escaped)
        digits = ""
        if escaped == "u":
            digits = yield from _read_hex_digits(source)
        emit(f"\\{escaped}{digits}")


def take_string(source: TextSource, max_chars: int = _MAX_KEY_CHARS) -> Waiting[str]:
    """Read a JSON string and return its value."""
    return (yield from _take(source, read_string, max_chars))  # type: ignore[no-any-return]


def take_text(source: TextSource) -> Waiting[str]:
    """Read a JSON value and return its text."""
    pieces: list[str] = []
    yield from read_value(source, pieces.append)
    return "".join(pieces)


def is_object(text: str) -> bool:
    """Whether a text is a JSON object, by the rules of this module."""
    return text.lstrip(_SPACE).startswith("{") and is_value(text)


def is_value(text: str) -> bool:
    """Whether a text is a JSON value, by the rules of this module."""
    source = TextSource(ArrivedText(text, is_over=True))

    def check() -> Waiting[bool]:
        yield from source.skip_space()
        yield from read_value(source, lambda _: None)
        yield from source.skip_space()
        return not (yield from source.peek())

    try:
        next(check())
    except StopIteration as done:
        return bool(done.value)
    except MalformedError:
        return False
    raise AssertionError("the text is over, so nothing waits")


def _take(source: TextSource, read: Callable[[TextSource, Emit], Waiting[None]], max_chars: int) -> Waiting[Any]:
    pieces: list[str] = []
    num_chars = 0

    def add(piece: str) -> None:
        nonlocal num_chars
        num_chars += len(piece)
        if num_chars > max_chars:
            raise MalformedError
        pieces.append(piece)

    yield from read(source, add)
    return json.loads("".join(pieces))


def _read_opening(source: TextSource, emit: Emit) -> Waiting[str]:
    """Read a scalar, or the bracket that opens an array or object; return the bracket that closes it."""
    char = yield from source.peek()
    if char in ("{", "["):
        yield from source.expect(char)
        emit(char)
        return "}" if char == "{" else "]"
    if char == '"':
        yield from read_string(source, emit)
    elif char and char in "tfn":
        word = {"t": "true", "f": "false", "n": "null"}[char]
        yield from source.expect(word)
        emit(word)
    else:
        number = yield from source.read_up_to(_NUMBER_CHARS, _MAX_NUMBER_CHARS)
        if not _NUMBER.fullmatch(number):
            raise MalformedError
        emit(number)
    return ""


def _read_key(source: TextSource, emit: Emit, end: str) -> Waiting[None]:
    """Read what stands before the next value in the array or object that `end` closes."""
    if end == "}":
        yield from read_string(source, emit)
        yield from _space(source, emit)
        yield from source.expect(":")
        emit(":")
    yield from _space(source, emit)


def _space(source: TextSource, emit: Emit) -> Waiting[None]:
    yield from source.skip_space(emit)


def _read_hex_digits(source: TextSource) -> Waiting[str]:
    digits = ""
    while len(digits) < 4:
        char = yield from source.peek()
        if not char or not _HEX_DIGITS.fullmatch(char):
            raise MalformedError
        yield from source.expect(char)
        digits += char
    return digits

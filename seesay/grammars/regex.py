"""Regular expressions in a form that the compiler of grammars honours exactly: literals, positive classes, groups,
alternatives and repetitions.

The expression is read by Python's own parser. It matches the whole text. What is no regular language, or depends on the
text around, is refused by name. The characters that are allowed never are more than Python's `re` allows, with or
without its flag ASCII: `\\w`, `\\d` and `\\s` are ASCII, `\\W` too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from seesay.errors import ErrorCode, RequestError
from seesay.grammars.character_set import ALL, LAST, CharacterSet, category

MAX_LENGTH = 50_000
"""Characters of an expression: Python's parser takes the square of the time for some."""
MAX_REPEAT = 10_000
_MAX_DEPTH = 50
_UNLIMITED = 1 << 31
_UTF8_EDGES = (0, 0x80, 0x800, 0x1000, 0xD000, 0xE000, 0x10000, 0x40000, 0x100000, LAST + 1)
_NEWLINE = CharacterSet.chars("\n")
_JSON_ESCAPES = {'"': '"', "\\": "\\", "\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
_JSON_PLAIN = ALL - CharacterSet.of([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)])

_REFUSED = {
    "ASSERT": "lookahead and lookbehind",
    "ASSERT_NOT": "negative lookahead and lookbehind",
    "GROUPREF": "backreferences",
    "GROUPREF_EXISTS": "conditional groups",
    "ATOMIC_GROUP": "atomic groups",
    "POSSESSIVE_REPEAT": "possessive repetitions",
}
_BEGINNINGS = ("AT_BEGINNING", "AT_BEGINNING_STRING")
_ENDS = ("AT_END", "AT_END_STRING")


def rewrite_regex(pattern: str, where: str, *, in_json: bool = False) -> str:
    """Return the compiler's form of `pattern`. in_json: of the characters between the quotes of a JSON string, whose
    text the pattern matches. Raises `RequestError` for what cannot be honoured, naming it and `where`."""
    if len(pattern) > MAX_LENGTH:
        raise _refuse(where, f"has {len(pattern)} characters; at most {MAX_LENGTH} are taken")
    try:
        with_groups = re._parser.parse(pattern, re.UNICODE)  # type: ignore[attr-defined]
    except (re.error, OverflowError, RecursionError) as error:
        raise _refuse(where, f"is not a regular expression: {error}") from error
    flags = with_groups.state.flags & ~re.UNICODE.value
    if flags:
        raise _refuse(where, f"has flags ({re.RegexFlag(flags).name}), which are not supported")
    return _Writer(where, in_json=in_json).write(list(with_groups), is_first=True, is_last=True, depth=0)


def escape_text(text: str) -> str:
    """Return an expression in the compiler's form that matches `text`."""
    return "".join(map(_spell, map(ord, text)))


def escape_in_json(text: str) -> str:
    """Return an expression in the compiler's form that matches a text as it is written in a JSON string."""
    return "".join(write_set(CharacterSet.chars(char), in_json=True) or "" for char in text)


@lru_cache(maxsize=1024)
def write_set(chars: CharacterSet, *, in_json: bool) -> str | None:
    """Return one character of a set; None where none is left. In JSON a control character is written only if it has a
    short escape."""
    if not in_json:
        return _write_class(chars) if chars else None
    plain = chars - ~_JSON_PLAIN
    options = [_write_class(part) for part in _split_by_length(plain)]
    # The compiler takes quotes and backslashes out of classes of more than one character.
    options += [escape_text(f"\\{letter}") for char, letter in _JSON_ESCAPES.items() if ord(char) in chars]
    return None if not options else options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"


def _write_class(chars: CharacterSet) -> str:
    if len(chars.ranges) == 1 and chars.ranges[0][0] == chars.ranges[0][1]:
        return _spell(chars.ranges[0][0])
    spelled = (_spell(a) if a == b else f"{_spell(a)}-{_spell(b)}" for a, b in chars.ranges)
    return f"[{''.join(spelled)}]"


def _split_by_length(chars: CharacterSet) -> Iterator[CharacterSet]:
    """Yield the parts of a set whose UTF-8 is alike: in a class that holds several, the compiler of patterns would also
    allow bytes that are no UTF-8."""
    for low, high in pairwise(_UTF8_EDGES):
        part = CharacterSet.of(
            (max(first, low), min(last, high - 1)) for first, last in chars.ranges if first < high and last >= low
        )
        if part:
            yield part


def _spell(code: int) -> str:
    char = chr(code)
    if char.isascii() and char.isalnum():
        return char
    return f"\\u{{{code:x}}}"


def _refuse(where: str, why: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, f"{where} {why}", "response_format")


class _Writer:
    """Writes the tree of Python's parser."""

    def __init__(self, where: str, *, in_json: bool) -> None:
        self._where = where
        self._in_json = in_json

    def write(self, items: Sequence[Any], *, is_first: bool, is_last: bool, depth: int) -> str:
        """Return a sequence of items. is_first, is_last: nothing comes before it, or behind it."""
        if depth > _MAX_DEPTH:
            raise _refuse(self._where, f"is nested more than {_MAX_DEPTH} levels deep")
        inner = [index for index, (operator, _) in enumerate(items) if str(operator) != "AT"]
        first, last = (inner[0], inner[-1]) if inner else (len(items), -1)
        return "".join(
            self._write_item(str(operator), argument, is_first and index <= first, is_last and index >= last, depth)
            for index, (operator, argument) in enumerate(items)
        )

    def _write_item(self, operator: str, argument: Any, begins: bool, ends: bool, depth: int) -> str:
        if operator in _REFUSED:
            raise _refuse(self._where, f"has {_REFUSED[operator]}, which are not supported")
        if operator == "AT":
            name = str(argument)
            if (name in _BEGINNINGS and begins) or (name in _ENDS and ends):
                return ""
            what = "^ and $ in the middle" if name in (*_BEGINNINGS, *_ENDS) else "word boundaries"
            raise _refuse(self._where, f"has {what}, which are not supported")
        if operator in ("MAX_REPEAT", "MIN_REPEAT"):
            return self._write_repeat(*argument, depth=depth)
        if operator == "SUBPATTERN":
            _, added, removed, inner = argument
            if added or removed:
                raise _refuse(self._where, "has flags, which are not supported")
            return f"(?:{self.write(list(inner), is_first=begins, is_last=ends, depth=depth + 1)})"
        if operator == "BRANCH":
            options = [
                self.write(list(option), is_first=begins, is_last=ends, depth=depth + 1) for option in argument[1]
            ]
            return f"(?:{'|'.join(options)})"
        return self._write_chars(self._read_set(operator, argument))

    def _write_repeat(self, least: Any, most: Any, inner: Any, *, depth: int) -> str:
        least, most = int(least), int(most)
        is_endless = most >= _UNLIMITED
        if max(least, 0 if is_endless else most) > MAX_REPEAT:
            raise _refuse(self._where, f"repeats more than {MAX_REPEAT} times")
        body = self.write(list(inner), is_first=False, is_last=False, depth=depth + 1)
        if not body or most == 0:
            return ""
        count = {(0, True): "*", (1, True): "+"}.get((least, is_endless))
        return f"(?:{body}){count or (f'{{{least},}}' if is_endless else f'{{{least},{most}}}')}"

    def _read_set(self, operator: str, argument: Any) -> CharacterSet:
        if operator == "LITERAL":
            return CharacterSet.of([(argument, argument)])
        if operator == "NOT_LITERAL":
            return ~CharacterSet.of([(argument, argument)])
        if operator == "ANY":
            return ~_NEWLINE
        if operator == "IN":
            return self._join(argument)
        raise _refuse(self._where, f"has {operator}, which is not supported")

    def _join(self, items: Iterable[Any]) -> CharacterSet:
        is_negated = False
        least: list[tuple[int, int]] = []
        most: list[tuple[int, int]] = []
        for operator, argument in items:
            name = str(operator)
            if name == "NEGATE":
                is_negated = True
                continue
            if name == "CATEGORY":
                word = str(argument).removeprefix("CATEGORY_")
                letter = word.removeprefix("NOT_")[0].lower()
                inner, outer = category(letter.upper() if word.startswith("NOT_") else letter)
            else:
                inner = outer = CharacterSet.of([argument if name == "RANGE" else (argument, argument)])
            least += inner.ranges
            most += outer.ranges
        return ~CharacterSet.of(most) if is_negated else CharacterSet.of(least)

    def _write_chars(self, chars: CharacterSet) -> str:
        written = write_set(chars, in_json=self._in_json)
        if written is None:
            raise _refuse(self._where, "has a class in which no character is left")
        return written

"""Regular expressions of Python in a form that llguidance honours exactly: literals, positive classes, groups,
alternatives and repetitions.

The expression is read by Python's own parser. It matches the whole text. What is no regular language, or depends on the
text around, is refused by name. The characters that are allowed never are more than Python's `re` allows, with or
without its flag ASCII: `\\w`, `\\d` and `\\s` are ASCII, `\\W` too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from seesay.errors import ErrorCode, RequestError
from seesay.grammars.character_set import ALL, CharacterSet, category
from seesay.grammars.rules import Node

MAX_LENGTH = 50_000
"""Characters of an expression: Python's parser takes the square of the time for some."""
MAX_REPEAT = 10_000
_MAX_DEPTH = 50
_UNLIMITED = 1 << 31
_NEWLINE = CharacterSet.chars("\n")

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


def rewrite_regex(pattern: str, where: str) -> str:
    """Return the compiler's form of `pattern`. Raises `RequestError` for what cannot be honoured, naming it and
    `where`."""
    return write_regex(read_regex(pattern, where))


def read_regex(pattern: str, where: str, *, flags: str = "") -> Node:
    """Return `pattern` as a part of a rule. flags: 'i' also takes ASCII letters in the other case, 's' lets a dot take
    newlines. Raises `RequestError` as `rewrite_regex`."""
    if len(pattern) > MAX_LENGTH:
        raise _refuse(where, f"has {len(pattern)} characters; at most {MAX_LENGTH} are taken")
    try:
        with_groups = re._parser.parse(pattern, re.UNICODE)  # type: ignore[attr-defined]
    except (re.error, OverflowError, RecursionError) as error:
        raise _refuse(where, f"is not valid: {error}") from error
    found = with_groups.state.flags & ~re.UNICODE.value
    if found:
        raise _refuse(where, f"has flags ({re.RegexFlag(found).name}), which are not supported")
    return _Reader(where, flags).read(list(with_groups), is_first=True, is_last=True, depth=0)


def write_regex(node: Node) -> str:
    """Return the compiler's form of a part that names no rules."""
    if node.kind == "chars":
        return write_set(node.chars)
    if node.kind == "choice":
        return f"(?:{'|'.join(map(write_regex, node.parts))})"
    if node.kind == "repeat":
        body = write_regex(node.parts[0])
        if not body or node.most == 0:
            return ""
        most = "" if node.most is None else str(node.most)
        sign = {(0, ""): "*", (1, ""): "+"}.get((node.least, most), f"{{{node.least},{most}}}")
        return f"(?:{body}){sign}"
    assert node.kind == "sequence", node.kind
    return "".join(map(write_regex, node.parts))


def escape_text(text: str) -> str:
    """Return an expression in the compiler's form that matches `text`."""
    return "".join(map(_spell, map(ord, text)))


def write_set(chars: CharacterSet) -> str:
    """Return an expression for one character of a set that is not empty."""
    if len(chars.ranges) == 1 and chars.ranges[0][0] == chars.ranges[0][1]:
        return _spell(chars.ranges[0][0])
    spelled = (_spell(a) if a == b else f"{_spell(a)}-{_spell(b)}" for a, b in chars.ranges)
    return f"[{''.join(spelled)}]"


def _spell(code: int) -> str:
    char = chr(code)
    if char.isascii() and char.isalnum():
        return char
    return f"\\u{{{code:x}}}"


def _refuse(where: str, why: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, f"{where} {why}", "response_format")


class _Reader:
    """Reads the tree of Python's parser."""

    def __init__(self, where: str, flags: str) -> None:
        self._where = where
        self._ignores_case, self._has_any = "i" in flags, "s" in flags

    def read(self, items: Sequence[Any], *, is_first: bool, is_last: bool, depth: int) -> Node:
        """Return a sequence of items. is_first, is_last: nothing comes before it, or behind it."""
        if depth > _MAX_DEPTH:
            raise _refuse(self._where, f"is nested more than {_MAX_DEPTH} levels deep")
        inner = [index for index, (operator, _) in enumerate(items) if str(operator) != "AT"]
        first, last = (inner[0], inner[-1]) if inner else (len(items), -1)
        parts = [
            self._read_item(str(operator), argument, is_first and index <= first, is_last and index >= last, depth)
            for index, (operator, argument) in enumerate(items)
        ]
        return parts[0] if len(parts) == 1 else Node("sequence", parts)

    def _read_item(self, operator: str, argument: Any, begins: bool, ends: bool, depth: int) -> Node:
        if operator in _REFUSED:
            raise _refuse(self._where, f"has {_REFUSED[operator]}, which are not supported")
        if operator == "AT":
            return self._read_anchor(str(argument), begins=begins, ends=ends)
        if operator in ("MAX_REPEAT", "MIN_REPEAT"):
            return self._read_repeat(*argument, depth=depth)
        if operator == "SUBPATTERN":
            _, added, removed, inner = argument
            if added or removed:
                raise _refuse(self._where, "has flags, which are not supported")
            return self.read(list(inner), is_first=begins, is_last=ends, depth=depth + 1)
        if operator == "BRANCH":
            options = (list(option) for option in argument[1])
            read = [self.read(option, is_first=begins, is_last=ends, depth=depth + 1) for option in options]
            return Node("choice", read)
        return self._make_chars(self._read_set(operator, argument))

    def _read_anchor(self, name: str, *, begins: bool, ends: bool) -> Node:
        """Return what stands for an anchor where nothing comes before it, or behind it."""
        if (name in _BEGINNINGS and begins) or (name in _ENDS and ends):
            return Node("sequence")
        what = "^ and $ in the middle" if name in (*_BEGINNINGS, *_ENDS) else "word boundaries"
        raise _refuse(self._where, f"has {what}, which are not supported")

    def _read_repeat(self, least: Any, most: Any, inner: Any, *, depth: int) -> Node:
        least, most = int(least), int(most)
        is_endless = most >= _UNLIMITED
        if max(least, 0 if is_endless else most) > MAX_REPEAT:
            raise _refuse(self._where, f"repeats more than {MAX_REPEAT} times")
        body = self.read(list(inner), is_first=False, is_last=False, depth=depth + 1)
        return Node("repeat", [body], least=least, most=None if is_endless else most)

    def _read_set(self, operator: str, argument: Any) -> CharacterSet:
        if operator == "LITERAL":
            return self._fold(CharacterSet.of([(argument, argument)]))
        if operator == "NOT_LITERAL":
            return ~self._fold(CharacterSet.of([(argument, argument)]))
        if operator == "ANY":
            return ALL if self._has_any else ~_NEWLINE
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
        return ~self._fold(CharacterSet.of(most)) if is_negated else self._fold(CharacterSet.of(least))

    def _fold(self, chars: CharacterSet) -> CharacterSet:
        return add_other_case(chars) if self._ignores_case else chars

    def _make_chars(self, chars: CharacterSet) -> Node:
        if not chars:
            raise _refuse(self._where, "has a class in which no character is left")
        return Node("chars", chars=chars)


def add_other_case(chars: CharacterSet) -> CharacterSet:
    """Return a set with its ASCII letters in both cases."""
    letters = [chr(code) for code in range(128) if chr(code).isalpha() and code in chars]
    return chars | CharacterSet.chars("".join(letters).swapcase())

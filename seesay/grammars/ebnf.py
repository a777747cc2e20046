"""EBNF in the form that the compiler takes: its texts are valid Unicode.

The compiler writes surrogates and code points above U+10FFFF as bytes that are not UTF-8, also those of classes such as
`[^a]`. An answer with such bytes would have U+FFFD in their place, which the grammar does not allow.
"""

from __future__ import annotations

import re

from seesay.errors import ErrorCode, RequestError
from seesay.grammars.character_set import LAST, CharacterSet

_PIECE = re.compile(
    r'#[^\n]*|"(?P<text>(?:\\.|[^"\\])*)"|\[(?P<chars>(?:\\.|[^\]\\])*)\]|(?<![\w.-])(?P<function>Regex)\s*\(',
    re.DOTALL,
)
_CHAR = re.compile(r"\\(?:x[0-9A-Fa-f]+|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)|[^\\]", re.DOTALL)
_ESCAPES = dict(zip("ntrabfve0\\\"'?-[]^", map(ord, "\n\t\r\a\b\f\v\x1b\0\\\"'?-[]^"), strict=True))
_SURROGATES = range(0xD800, 0xE000)


def rewrite_ebnf(source: str, name: str) -> str:
    """Return a grammar of those texts of `source` that are valid Unicode. Faults of its form are left to the compiler.
    Raises `RequestError` that begins with `name` for a character that stands in no text, and for `Regex(…)`, of which
    the compiler ignores parts."""

    def rewrite(piece: re.Match[str]) -> str:
        if piece["function"] is not None:
            raise _refuse(name, "Regex(…) is not supported: write rules, or send the expression as `regex` instead")
        if piece["text"] is not None:
            for char in _CHAR.findall(piece["text"]):
                _check(_read(char), name)
        elif piece["chars"] is not None:
            return f"[{_rewrite_class(piece['chars'], name)}]"
        return piece[0]

    return _PIECE.sub(rewrite, source)


def _rewrite_class(inner: str, name: str) -> str:
    is_negated = inner.startswith("^")
    chars = _CHAR.findall(inner[is_negated:])
    ranges = []
    i = 0
    while i < len(chars):
        last = i + 2 if i + 2 < len(chars) and chars[i + 1] == "-" else i
        ranges.append((_read(chars[i]), _read(chars[last])))
        i = last + 1
    for ends in ranges:
        for code in ends:
            if not (is_negated and code in _SURROGATES):
                _check(code, name)
    if any(not 0 <= first <= last for first, last in ranges):
        return inner  # the compiler refuses it
    given = CharacterSet.of(ranges)
    if is_negated:
        return f"^{_spell(given)}\\ud800-\\udfff" if ~given else ""
    crosses = any(first < _SURROGATES.start <= last for first, last in ranges)
    return _spell(given) if crosses else inner


def _read(char: str) -> int:
    """Return the code point of a character or an escape; -1 for an escape that the compiler does not know."""
    if len(char) == 1:
        return ord(char)
    return int(char[2:], 16) if len(char) > 2 else _ESCAPES.get(char[1], -1)


def _check(code: int, name: str) -> None:
    if code in _SURROGATES:
        why = f"the grammar has the lone surrogate U+{code:04X}, which stands in no text: write \\U and 8 digits"
        raise _refuse(name, f"{why} for characters above U+FFFF")
    if code > LAST:
        raise _refuse(name, f"the grammar has a character above U+{LAST:X}, the last one")


def _spell(chars: CharacterSet) -> str:
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in chars.ranges)


def _refuse(name: str, why: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, f"{name}: {why}", "response_format")

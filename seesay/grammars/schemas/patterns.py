"""Regular expressions of JSON Schema's `pattern`, which are ECMAScript's, in the dialect of llguidance.

It refuses lookaround, backreferences and word boundaries. What the two dialects read differently is written out here.
Where a class has all control characters, llguidance takes it to have the quote and the backslash, too: so none has
U+0000, which no answer can have either.
"""

from __future__ import annotations

import json
import re

from seesay.errors import show
from seesay.grammars.schemas.schema_fields import refuse

_MAX_CHARS = 20_000
_PIECE = re.compile(
    r"\\(?:u\{[0-9A-Fa-f]+\}|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|c[A-Za-z]|[pP]\{[^}]*\}|k<[^>]*>|.)|[^\\]", re.DOTALL
)
_SPACES = r" \x{9}-\x{d}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": _SPACES}
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "0": 0}
_LOOKAROUND = re.compile(r"^(?:\\.|\[(?:\\.|[^\]\\])*\]|[^\\\[])*?\(\?<?[=!]", re.DOTALL)
_PAIR = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")


def rewrite_pattern(pattern: object, place: str, *, key: str = "pattern", is_tried: bool = False) -> str:
    """Return an expression that is found in the same texts. Raises `RequestError` that names `key`, where it `is_tried`
    also if the compiler would refuse the expression."""
    expression = _rewrite(pattern, place, key)
    if is_tried and not _compiles(expression):
        raise refuse(place, f"{key} {show(pattern)} is no regular expression that is known")
    return expression


def _compiles(expression: str) -> bool:
    from llguidance import LLMatcher

    schema = json.dumps({"type": "string", "pattern": expression})
    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(f"start: %json {schema}"))


def _rewrite(pattern: object, place: str, key: str) -> str:
    written: list[str] = []
    in_class = False
    at_start = False
    for piece in _PIECE.findall(_check_pattern(pattern, place, key)):
        if piece[0] == "\\":
            written.append(_write_escape(piece, place, key, in_class=in_class))
        elif in_class and at_start and piece == "^":
            written.append("^\\x{0}")
        elif in_class:
            in_class = piece != "]"
            is_plain = piece in "]^" or piece.isalnum() or (piece == "-" and written[-1] != "-")
            written.append(piece if is_plain else _spell(ord(piece)))
        else:
            in_class = piece == "["
            written.append(_spell(ord(piece)) if piece in "/#& ~" else piece)
        at_start = piece == "[" and in_class
    return "".join(written)


def _check_pattern(pattern: object, place: str, key: str) -> str:
    """Return an expression that can be rewritten, with surrogate pairs as one character."""
    if not isinstance(pattern, str):
        raise refuse(place, f"{key} must be a text, got {show(pattern)}")
    if len(pattern) > _MAX_CHARS:
        raise refuse(place, f"{key} has {len(pattern)} characters; at most {_MAX_CHARS} are taken")
    if _LOOKAROUND.search(pattern):
        raise refuse(place, f"{key} has lookaround, which is not supported")
    return _PAIR.sub(lambda pair: f"\\u{{{_join(int(pair[1], 16), int(pair[2], 16)):x}}}", pattern)


def _join(high: int, low: int) -> int:
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)


def _spell(code: int) -> str:
    code = max(code, 1)
    return f"\\x{{{code:x}}}"


def _write_escape(piece: str, place: str, key: str, *, in_class: bool) -> str:
    letter, rest = piece[1], piece[2:]
    if letter.lower() in _CLASSES:
        inner = _CLASSES[letter.lower()]
        return inner if in_class and letter.islower() else f"[{'^' * letter.isupper()}{inner}]"
    if letter in "pP" and rest:
        return piece
    code = _read_code(letter, rest, in_class=in_class)
    if code is None:
        what = "word boundaries" if letter in "bB" else "backreferences"
        raise refuse(place, f"{key} has {what}, which are not supported")
    if 0xD800 <= code < 0xE000:
        raise refuse(place, f"{key} has half of a surrogate pair, which stands in no text")
    return _spell(code)


def _read_code(letter: str, rest: str, *, in_class: bool) -> int | None:
    """Return the code of the character that an escape stands for; None where it stands for none."""
    if letter in "xu" and rest:
        return int(rest.strip("{}"), 16)
    if letter == "c" and rest:
        return ord(rest) % 32
    if letter == "b" and in_class:
        return 8
    if letter in _CONTROLS:
        return _CONTROLS[letter]
    return None if letter in "bBk" or letter.isdigit() else ord(letter)

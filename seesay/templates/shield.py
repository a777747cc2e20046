"""Distinguish text that users typed from text that a template wrote, whatever the template does.

User text that spells a special token or a media marker gets a nonce character after its first character. Templates may
strip, split and join it. Afterwards the nonces are removed, and the spellings that had one are literals.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

from seesay.errors import ErrorCode, RequestError
from seesay.templates.parsers.json_text import MAX_DEPTH

Span = tuple[int, int]

_SLICE_CHARS = 1 << 16  # searched in one call, which holds the GIL
_MAX_LEVELS = MAX_DEPTH + 8
"""As deep as the arguments of calls are read, within the lists and objects around them."""
_PRIVATE_USE = range(0xE000, 0xF8FF)
_ESCAPES = re.compile(r"\\u([ef][0-9a-f]{3})", re.IGNORECASE)


class _Spellings(NamedTuple):
    """Patterns that find any of the spellings (longest first) and their starts; their prefixes; the largest length."""

    pattern: re.Pattern[str] | None
    starts: re.Pattern[str] | None
    beginnings: frozenset[str]
    longest: int


@lru_cache(maxsize=64)
def _compile(spellings: tuple[str, ...]) -> _Spellings:
    # A nonce in a spelling of whitespace would not survive strip(). Such a spelling cannot end a turn either.
    wanted = sorted({s for s in spellings if s.strip()}, key=lambda s: (-len(s), s))
    alternatives = "|".join(map(re.escape, wanted))
    return _Spellings(
        pattern=re.compile(alternatives) if wanted else None,
        starts=re.compile(f"(?={alternatives})") if wanted else None,
        beginnings=frozenset(s[:size] for s in wanted for size in range(1, len(s))),
        longest=max(map(len, wanted), default=0),
    )


class Shield:
    """The nonces of one rendering. Call `choose_nonces`, `cover` all user texts, render, then `lift`."""

    __slots__ = ("_beginnings", "_longest", "_nonce", "_pattern", "_slice_chars", "_starts", "tail")

    def __init__(self, spellings: Sequence[str], *, slice_chars: int = _SLICE_CHARS) -> None:
        """spellings: texts that the tokenizer takes for a special token, or the splicer for a marker. slice_chars: most
        characters that are searched in one call."""
        self._slice_chars = slice_chars
        self._pattern, self._starts, self._beginnings, self._longest = _compile(tuple(spellings))
        self._nonce = chr(_PRIVATE_USE[0])
        self.tail = chr(_PRIVATE_USE[1])

    def choose_nonces(self, texts: Iterable[str]) -> None:
        """Choose two characters that are in none of `texts`, neither as themselves nor as a JSON escape."""
        taken: set[int] = set()
        for text in texts:
            if not text.isascii() or "\\u" in text:
                taken |= self._find_private(text)
        if len(_PRIVATE_USE) - len(taken) < 2:
            raise RequestError(ErrorCode.INVALID_REQUEST, "the text uses all private-use characters", "messages")
        chosen: list[str] = []
        while len(chosen) < 2:  # fast, as usually no character is taken
            code = _PRIVATE_USE[int.from_bytes(os.urandom(8)) % len(_PRIVATE_USE)]
            if code not in taken:
                taken.add(code)
                chosen.append(chr(code))
        self._nonce, self.tail = chosen

    def _find_private(self, text: str) -> set[int]:
        """Return the private-use characters of a text, also those that are written as JSON escapes."""
        codes: set[int] = {int(digits, 16) for digits in _ESCAPES.findall(text)}
        for start in range(0, len(text), self._slice_chars):
            codes.update(map(ord, set(text[start : start + self._slice_chars])))
        return {code for code in codes if code in _PRIVATE_USE}

    def cover(self, text: str) -> str:
        """Put a nonce into each dangerous spelling in `text`, and into an ending that the next text could complete."""
        if self._starts is None or not text:
            return text
        starts = set(self._find_starts(text))
        first = max(0, len(text) - self._longest + 1)
        starts.update(at for at in range(first, len(text)) if text[at:] in self._beginnings)
        if not starts:
            return text
        pieces = []
        done = 0
        for start in sorted(starts):
            pieces.append(text[done : start + 1])
            done = start + 1
        return self._nonce.join([*pieces, text[done:]])

    def _find_starts(self, text: str) -> Iterator[int]:
        assert self._starts is not None
        for first in range(0, len(text), self._slice_chars):
            last = first + self._slice_chars
            found = self._starts.finditer(text, first, last + self._longest)
            yield from (match.start() for match in found if match.start() < last)

    def cover_all(self, value: object, *, levels: int = _MAX_LEVELS) -> Any:
        """Rebuild `value` from plain JSON types with all strings covered. Templates get no other objects. Raises
        `RequestError` where more than `levels` of mappings and lists are in each other."""
        if isinstance(value, str):
            return self.cover(str.__str__(value))
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, Mapping | list | tuple) and not levels:
            why = f"a value of a message, a tool or a variable of the chat template has more than {_MAX_LEVELS} levels"
            raise RequestError(ErrorCode.INVALID_REQUEST, why, "messages")
        if isinstance(value, Mapping):
            return {self.cover(str(key)): self.cover_all(item, levels=levels - 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.cover_all(item, levels=levels - 1) for item in value]
        return f"<{type(value).__name__}>"

    def restore_escapes(self, text: str) -> str:
        """Undo the JSON escapes of nonces by tojson(ensure_ascii=True)."""
        return text.replace(json.dumps(self._nonce)[1:-1], self._nonce)

    def find_open(self, text: str, wanted: Sequence[str]) -> list[Span]:
        """Return the spans of `wanted` spellings in a rendered text that have no nonce: the template wrote them."""
        if not wanted:
            return []
        pattern = "|".join(map(re.escape, sorted(wanted, key=len, reverse=True)))
        return [match.span() for match in re.finditer(pattern, text)]

    def lift(self, text: str, spans: Sequence[Span]) -> tuple[str, tuple[Span, ...], tuple[Span, ...]]:
        """Remove the nonces. Returns (text, `spans` moved accordingly, spans of literals)."""
        pieces = text.split(self._nonce)
        clean = "".join(pieces)
        cuts = list(accumulate(map(len, pieces[:-1])))  # offsets in `clean` at which a nonce was removed
        moved = []
        passed = 0
        for start, stop in spans:
            while passed < len(cuts) and cuts[passed] + passed < start:
                passed += 1
            moved.append((start - passed, stop - passed))
        return clean, tuple(moved), self._find_literals(clean, cuts)

    def _find_literals(self, text: str, cuts: Sequence[int]) -> tuple[Span, ...]:
        """Return the spans of the special tokens around the offsets `cuts`, each in front of what follows."""
        literals: list[Span] = []
        for cut in cuts:
            match = self._pattern.match(text, cut - 1) if self._pattern and cut else None
            if match and (not literals or match.start() >= literals[-1][1]):
                literals.append(match.span())
        return tuple(literals)

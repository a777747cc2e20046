"""Sets of characters as ranges, and the categories of regular expressions as such sets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Self

LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)


@dataclass(frozen=True, slots=True)
class CharacterSet:
    """Code points as ascending, disjoint (first, last) ranges. Surrogates are in no set."""

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> Self:
        """The union of any ranges."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = merged[-1][0], max(last, merged[-1][1])
            else:
                merged.append((first, last))
        low, high = _SURROGATES
        kept: list[tuple[int, int]] = []
        for first, last in merged:
            kept += [(a, b) for a, b in ((first, min(last, low - 1)), (max(first, high + 1), last)) if a <= b]
        return cls(tuple(dict.fromkeys(kept)))

    @classmethod
    def chars(cls, text: str) -> Self:
        return cls.of((ord(char), ord(char)) for char in text)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, code: int) -> bool:
        return any(first <= code <= last for first, last in self.ranges)

    def __or__(self, other: Self) -> Self:
        return self.of((*self.ranges, *other.ranges))

    def __and__(self, other: Self) -> Self:
        return ~(~self | ~other)

    def __invert__(self) -> Self:
        edges, start = [], 0
        for first, last in self.ranges:
            if start < first:
                edges.append((start, first - 1))
            start = last + 1
        if start <= LAST:
            edges.append((start, LAST))
        return self.of(edges)

    def __sub__(self, other: Self) -> Self:
        return ~(~self | other)


ALL = CharacterSet.of([(0, LAST)])
DIGITS = CharacterSet.of([(0x30, 0x39)])
WORD = CharacterSet.of([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
SPACE = CharacterSet.chars(" \t\n\r\f\v")
_BEYOND_ASCII = CharacterSet.of([(0x80, LAST)])
_OTHER_SPACE = CharacterSet.of(
    (first, last)
    for first, last in zip(
        (0x1C, 0x85, 0xA0, 0x1680, 0x2000, 0x2028, 0x202F, 0x205F, 0x3000, 0xFEFF),
        (0x1F, 0x85, 0xA0, 0x1680, 0x200A, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF),
        strict=True,
    )
)


@cache
def category(letter: str) -> tuple[CharacterSet, CharacterSet]:
    """Return (the characters that `\\d`, `\\w`, `\\s` or their complements have in every dialect, those that they
    have in any). ECMAScript's `\\d` and `\\w` are ASCII; Python's are Unicode's."""
    if letter.isupper():
        least, most = category(letter.lower())
        return ~most, ~least
    if letter == "d":
        decimals = CharacterSet.of((code, code) for code in range(0x80, LAST + 1) if chr(code).isdecimal())
        return DIGITS, DIGITS | decimals
    if letter == "w":
        return WORD, WORD | _BEYOND_ASCII
    return SPACE, SPACE | _OTHER_SPACE

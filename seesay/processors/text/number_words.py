"""Numbers in English words, as prompts of some models spell them."""

from __future__ import annotations

from collections.abc import Sequence

_SMALL: Sequence[str] = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS: Sequence[str] = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_GROUPS = ((1_000_000, "million"), (1_000, "thousand"))


def spell_number(number: int) -> str:
    """Return a whole number from 0 to 999,999,999 in words: 'one thousand and one', 'two thousand, one hundred'."""
    if not 0 <= number < 1_000_000_000:
        raise ValueError(f"number must be from 0 to 999,999,999, got {number}")
    parts = []
    rest = number
    for size, name in _GROUPS:
        if rest >= size:
            parts.append(f"{_spell_hundreds(rest // size)} {name}")
            rest %= size
    if not rest and parts:
        return ", ".join(parts)
    last = _spell_hundreds(rest)
    if not parts:
        return last
    return ", ".join(parts) + (" and " if rest < 100 else ", ") + last


def _spell_hundreds(number: int) -> str:
    if number < 20:
        return _SMALL[number]
    if number < 100:
        tens = _TENS[number // 10 - 2]
        return tens if number % 10 == 0 else f"{tens}-{_SMALL[number % 10]}"
    hundreds = f"{_SMALL[number // 100]} hundred"
    return hundreds if number % 100 == 0 else f"{hundreds} and {_spell_hundreds(number % 100)}"

"""Which media the tokens of a prompt attend to, where they do so beside the text (cross-attention).

A token attends to the media that come last before it, itself included: to one, or to several that lie directly behind
each other (Meta 2024, Llama 3.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

NO_STOP = 1 << 62
"""Behind every position."""


class Sight(NamedTuple):
    """Positions `start` … `stop` - 1 attend to these items."""

    start: int
    stop: int
    item_indexes: tuple[int, ...]


def find_stops(firsts: Sequence[int]) -> tuple[int, ...]:
    """Return the first position that no longer attends to each of the items at the positions `firsts`, ascending."""
    stops, stop = [], NO_STOP
    for index, first in reversed(list(enumerate(firsts))):
        stops.append(stop)
        if not index or firsts[index - 1] != first - 1:
            stop = first
    return tuple(reversed(stops))


def find_sights(firsts: Sequence[int], stops: Sequence[int], start: int, stop: int) -> Iterator[Sight]:
    """Yield what the positions `start` … `stop` - 1 attend to, those that attend to nothing left out. `stops` are those
    of `find_stops`."""
    borders = sorted({start, stop, *(each for each in (*firsts, *stops) if start < each < stop)})
    for first, last in pairwise(borders):
        seen = tuple(i for i, (begin, end) in enumerate(zip(firsts, stops, strict=True)) if begin <= first < end)
        if seen:
            yield Sight(first, last, seen)

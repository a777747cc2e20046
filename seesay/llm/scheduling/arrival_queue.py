"""Sequences in the order in which they arrived, or in that of their places. Knows nothing else about them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seesay.llm.scheduling.sequence import Sequence


class ArrivalQueue:
    """Sequences by arrival, the oldest first. Adding one that is there, or removing one that is not, does nothing."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __getitem__(self, index: int) -> Sequence:
        return self._sequences[index]

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __reversed__(self) -> Iterator[Sequence]:
        return reversed(self._sequences)

    def __contains__(self, seq: Sequence) -> bool:
        return self._find(seq)[1]

    def add(self, seq: Sequence) -> None:
        index, is_there = self._find(seq)
        if not is_there:
            self._numbers.insert(index, self._number_of(seq))
            self._sequences.insert(index, seq)

    def discard(self, seq: Sequence) -> None:
        index, is_there = self._find(seq)
        if is_there:
            del self._numbers[index], self._sequences[index]

    def _find(self, seq: Sequence) -> tuple[int, bool]:
        """Return where a sequence is, or would be, and whether it is there. No two have one number."""
        number, numbers = self._number_of(seq), self._numbers
        index = bisect_left(numbers, number)
        return index, index < len(numbers) and numbers[index] == number

    def _number_of(self, seq: Sequence) -> int:
        return seq.arrival


class PlaceQueue(ArrivalQueue):
    """Sequences by place, the first to be served first. A place does not change while its sequence is in a queue."""

    def _number_of(self, seq: Sequence) -> int:
        return seq.place

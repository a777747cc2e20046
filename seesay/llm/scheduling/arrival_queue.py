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
        index = self._find(seq)
        return index < len(self._sequences) and self._sequences[index] is seq

    def add(self, seq: Sequence) -> None:
        if seq not in self:
            self._sequences.insert(self._find(seq), seq)

    def discard(self, seq: Sequence) -> None:
        if seq in self:
            del self._sequences[self._find(seq)]

    def _find(self, seq: Sequence) -> int:
        if not self._sequences or self._sequences[-1].arrival < seq.arrival:
            return len(self._sequences)
        return bisect_left(self._sequences, seq.arrival, key=lambda other: other.arrival)


class PlaceQueue(ArrivalQueue):
    """Sequences by place, the first to be served first. A place does not change while its sequence is in a queue.

    has_priorities: whether the order is not that of arrival for certain: somebody has another place.
    """

    def __init__(self) -> None:
        super().__init__()
        self._num_moved = 0

    @property
    def has_priorities(self) -> bool:
        return self._num_moved > 0

    def add(self, seq: Sequence) -> None:
        if seq not in self:
            self._num_moved += seq.place != seq.arrival
            self._sequences.insert(self._find(seq), seq)

    def discard(self, seq: Sequence) -> None:
        if seq in self:
            self._num_moved -= seq.place != seq.arrival
            del self._sequences[self._find(seq)]

    def _find(self, seq: Sequence) -> int:
        if not self._sequences or self._sequences[-1].place < seq.place:
            return len(self._sequences)
        return bisect_left(self._sequences, seq.place, key=lambda other: other.place)

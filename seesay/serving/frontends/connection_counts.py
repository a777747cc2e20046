"""How many connections each front has open: all fronts and the supervisor know it without messages."""

from __future__ import annotations

import mmap
import os

_ABSENT = 2**31 - 1


class ConnectionCounts:
    """The number of open connections of each front, in anonymous memory that all processes map."""

    def __init__(self, descriptor: int, num_fronts: int) -> None:
        self._memory = mmap.mmap(descriptor, 4 * num_fronts)
        self._counts = memoryview(self._memory).cast("i")

    @classmethod
    def make(cls, num_fronts: int) -> tuple[ConnectionCounts, int]:
        """Return the counts of fronts that are all absent, and the descriptor of their memory."""
        descriptor = os.memfd_create("seesay-connections")
        os.ftruncate(descriptor, 4 * num_fronts)
        counts = cls(descriptor, num_fronts)
        for index in range(num_fronts):
            counts.leave(index)
        return counts, descriptor

    def set(self, index: int, count: int) -> None:
        """Note how many connections a front has."""
        self._counts[index] = count

    def leave(self, index: int) -> None:
        """Note that a front takes no connections."""
        self._counts[index] = _ABSENT

    def least(self) -> int:
        """Return how many the front with the fewest has."""
        return min(self._counts)

    def close(self) -> None:
        """Unmap the memory."""
        self._counts.release()
        self._memory.close()

"""How many connections each frontend has open: all frontends and the supervisor know it without messages."""

from __future__ import annotations

import mmap
import os

_ABSENT = 2**31 - 1


class ConnectionCounts:
    """The number of open connections of each frontend, in anonymous memory that all processes map."""

    def __init__(self, descriptor: int, num_frontends: int) -> None:
        self._memory = mmap.mmap(descriptor, 4 * num_frontends)
        self._counts = memoryview(self._memory).cast("i")

    @classmethod
    def make(cls, num_frontends: int) -> tuple[ConnectionCounts, int]:
        """Return the counts of frontends that are all absent, and the descriptor of their memory."""
        descriptor = os.memfd_create("seesay-connections")
        os.ftruncate(descriptor, 4 * num_frontends)
        counts = cls(descriptor, num_frontends)
        for index in range(num_frontends):
            counts.leave(index)
        return counts, descriptor

    def set(self, index: int, count: int) -> None:
        """Note how many connections a frontend has."""
        self._counts[index] = count

    def leave(self, index: int) -> None:
        """Note that a frontend takes no connections."""
        self._counts[index] = _ABSENT

    def least(self) -> int:
        """Return how many the frontend with the fewest has."""
        return min(self._counts)

    def close(self) -> None:
        """Unmap the memory."""
        self._counts.release()
        self._memory.close()

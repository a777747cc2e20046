"""Says in the log what a rank that follows is doing, where that takes long and others may wait for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger("seesay")

PATIENCE_S = 10.0
"""After so long it is logged what a rank is doing, and again after each such time."""


class _Wait:
    def __init__(self, what: str, now_s: float) -> None:
        self.what, self.since_s, self.logged_s = what, now_s, now_s


class Waits:
    """Those for ranks of `size`. `log_long` is called by one thread; the others by any."""

    def __init__(self, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._size, self._clock = size, clock
        self._waits: dict[int, _Wait] = {}

    def begin(self, rank: int, what: str) -> None:
        """Note what a rank is doing from now on."""
        self._waits[rank] = _Wait(what, self._clock())

    def end(self, rank: int) -> None:
        """Note that nothing is expected of a rank."""
        self._waits.pop(rank, None)

    def find(self, rank: int) -> str | None:
        """Return what a rank is doing; None for nothing that is waited for."""
        wait = self._waits.get(rank)
        return None if wait is None else wait.what

    def log_long(self) -> None:
        """Log what takes long. Call it again and again."""
        now_s = self._clock()
        for rank, wait in sorted(self._waits.copy().items()):
            if now_s - wait.logged_s >= PATIENCE_S:
                wait.logged_s = now_s
                logger.info("rank %d of %d, for %.0f s: %s", rank, self._size, now_s - wait.since_s, wait.what)

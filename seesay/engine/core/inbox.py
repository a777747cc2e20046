"""Calls from other threads, for the engine loop's thread."""

from __future__ import annotations

import queue
from collections.abc import Callable


class Inbox:
    """Calls that any thread may leave, and the loop's thread makes, in the order in which they came."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def put(self, call: Callable[[], None]) -> None:
        """Leave a call."""
        self._calls.put(call)

    def drain(self, *, wait: bool, limit: int | None = None) -> bool:
        """Make the calls that are there, at most `limit` of them; `wait` until there is one. Returns whether more may
        be there."""
        num_left = limit
        try:
            call = self._calls.get() if wait else self._calls.get_nowait()
            while True:
                call()
                if num_left is not None:
                    num_left -= 1
                    if num_left <= 0:
                        return True
                call = self._calls.get_nowait()
        except queue.Empty:
            return False

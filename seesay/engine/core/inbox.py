"""What other threads ask of the engine loop's thread."""

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

    def drain(self, *, wait: bool) -> None:
        """Make all calls that are there; `wait` until there is one."""
        try:
            call = self._calls.get() if wait else self._calls.get_nowait()
            while True:
                call()
                call = self._calls.get_nowait()
        except queue.Empty:
            return

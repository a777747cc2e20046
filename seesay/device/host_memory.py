"""Memory of the host that is free, but not given back to the system.

Pictures come in all sizes. What they leave behind lies between what others still use, and glibc gives it back only when
it is asked to: a server that sees thousands of them would seem to grow for ever.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from functools import cache

INTERVAL_S = 60.0
"""Giving back takes some 50 ms of a thread, in which others may wait for memory; what is taken again is zeroed."""


@cache
def _find_trim() -> Callable[[int], int] | None:
    """glibc's `malloc_trim`; None with another C library."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return trim


def return_memory() -> bool:
    """Give free memory back to the system now; returns whether the C library can."""
    trim = _find_trim()
    if trim is not None:
        trim(0)
    return trim is not None


class MemoryReturn:
    """Gives free memory back from time to time. Thread-safe."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._last_s = time.monotonic()

    def return_if_due(self) -> bool:
        """Give memory back unless that was done a moment ago; returns whether it was done."""
        now_s = time.monotonic()
        with self._lock:
            if now_s - self._last_s < self._interval_s:
                return False
            self._last_s = now_s
        return return_memory()

"""Bounds what allocators hold, and returns freed host memory to the system (heap trim).

Pictures of many sizes fragment the heap: their freed memory lies between allocations that are still in use, and glibc
returns it to the system only on request. Without it, the memory of a server grows with every thousand pictures.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

INTERVAL_S = 60.0
"""Shortest time between two trims. A trim takes about 50 ms, in which other threads may wait for the allocator, and
memory that is allocated again must be zeroed by the kernel."""

NUM_ARENAS = 4
"""Heaps of glibc in a process. By default there are eight per core, each with free memory of its own."""
MMAP_BYTES, TRIM_BYTES = 32 << 20, 64 << 20
"""Allocations from the first on go back to the system as soon as they are freed, and so does what is free at the end of
a heap from the second on. glibc comes to these limits by itself, when large memory was freed for the first time. Lower
ones cost a page fault for every 4 kB of every picture: decoding one of 1024 pixels then took 1.6 times as long."""
NUM_PRIMITIVES = 64
"""Compiled operations that oneDNN keeps in a process, and torch's layer above it in each thread, by the shapes of their
tensors: some 0.6 MB each. By default there are 1,024 in each, which pictures of many sizes fill on the CPU."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


@cache
def bound_allocators() -> None:
    """Bound the memory that glibc and oneDNN hold in this process. Has an effect on oneDNN before its first call, and
    none on what the environment sets already."""
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(NUM_PRIMITIVES))
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim") or "GLIBC_TUNABLES" in os.environ:
        return
    if "MALLOC_ARENA_MAX" not in os.environ:
        libc.mallopt(_M_ARENA_MAX, NUM_ARENAS)
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        libc.mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES)
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        libc.mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES)


@cache
def _find_trim() -> Callable[[int], int] | None:
    """Return glibc's `malloc_trim`, or None with another C library."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return trim


def return_memory() -> bool:
    """Return free memory to the system now. Returns whether the C library supports it."""
    trim = _find_trim()
    if trim is not None:
        trim(0)
    return trim is not None


class MemoryReturn:
    """Return free memory to the system at intervals. Thread-safe."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._last_s = time.monotonic()

    def return_if_due(self) -> bool:
        """Return memory to the system unless the last time was too recent. Returns whether it was done."""
        now_s = time.monotonic()
        with self._lock:
            if now_s - self._last_s < self._interval_s:
                return False
            self._last_s = now_s
        return return_memory()


def measure_host_memory() -> tuple[int, int]:
    """Return the free and the total bytes: the smaller of host memory (/proc/meminfo) and the cgroup limit; 8 GiB if
    neither can be read."""
    free = total = 8 << 30
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line)
        free, total = (int(fields[key].split()[0]) * 1024 for key in ("MemAvailable", "MemTotal"))
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text().strip()
        if limit.isdigit():
            total, free = min(total, int(limit)), min(free, max(0, int(limit) - int(used)))
    except (OSError, KeyError, ValueError):
        pass
    return free, total

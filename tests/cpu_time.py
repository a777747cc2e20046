"""CPU time of the calling thread, for tests of how work grows with its input. Other processes do not count in it."""

from __future__ import annotations

import time
from collections.abc import Callable


def measure_cpu_s(work: Callable[[], object]) -> float:
    """Return the CPU seconds that `work` takes: the least of three runs."""
    times = []
    for _ in range(3):
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    return min(times)

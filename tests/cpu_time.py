"""CPU time of the calling thread, for tests of how work grows with its input. Other processes do not count in it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def measure_cpu_s(work: Callable[[], object]) -> float:
    """Return the CPU seconds that `work` takes: the least of three runs. Garbage is collected before, not meanwhile: a
    collection looks at all objects of the process."""
    times = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            began = time.thread_time()
            work()
            times.append(time.thread_time() - began)
    finally:
        gc.enable()
    return min(times)

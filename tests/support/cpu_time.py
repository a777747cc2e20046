"""CPU time of the calling thread, for tests of how work grows with its input. Other processes do not count in it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def measure_cpu_s(work: Callable[[], object], *, enough_s: float = 0.0) -> float:
    """Return the CPU seconds that `work` takes: the least of three runs, or the first that takes less than `enough_s`.
    No garbage is collected meanwhile: a collection looks at all objects of the process."""
    times: list[float] = []
    gc.disable()
    try:
        while len(times) < 3 and min(times, default=enough_s) >= enough_s:
            began = time.thread_time()
            work()
            times.append(time.thread_time() - began)
    finally:
        gc.enable()
    return min(times)


def check_cpu_s(work: Callable[[], object], limit_s: float) -> None:
    """Fail if `work` takes `limit_s` of CPU time or more in each of three runs. One that takes less is enough."""
    taken_s = measure_cpu_s(work, enough_s=limit_s)
    assert taken_s < limit_s, f"it took {taken_s:.3f} s, more than {limit_s:.3f} s"

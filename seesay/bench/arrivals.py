"""When the requests of a measurement arrive."""

from __future__ import annotations

import math
import random


def arrival_times_s(num: int, *, rate: float = math.inf, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """Return when each of `num` requests arrives, in seconds after the start.

    rate: requests per second; infinity sends all at once. burstiness: the shape of the gamma distribution of the time
    between two: 1 is a Poisson process, less comes in bursts, more is steadier. The last one arrives at `num / rate`
    on average.
    """
    if math.isinf(rate):
        return [0.0] * num
    draw = random.Random(seed)
    times, at_s = [], 0.0
    for _ in range(num):
        times.append(at_s)
        at_s += draw.gammavariate(burstiness, 1 / (rate * burstiness))
    return times

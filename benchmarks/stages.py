"""Where the time of requests that were given at once went: when they had passed each stage, how long each of them was
in it, and who used the processor.

*passed_s*: seconds from the start until half of the requests and the last of them had passed a stage. *prepared*: their
prompts were handed to the engine. *encoded*: of the pictures that were encoded. *launched*: their first tokens went to
the device, for which those before a picture are enough. *first_token* and *complete* are of the answers. The first two
are read from the engine's counters every 20 ms, which an engine process sends at least once a second; the others are
from the timings of the answers.

*spent_s*: seconds that a request spent in each stage of `StageTimings` (median and longest), without those that no
request had. *engine*: calls of the vision tower and steps, what was in them, preemptions, and the size of the KV cache.
*cpu_s*: processor time of this process (*frontend*), of the engine process, if there is one, and of all other processes
of this one (*others*), which render templates.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

from processor_time import children_of, cpu_s

if TYPE_CHECKING:
    from seesay import Pipeline, Response
    from seesay.values import EngineStats, StageTimings

_SAMPLED_EVERY_S = 0.02
_MOMENTS = ("time_to_first_token_s", "total_s")
"""Fields of `StageTimings` that count from the start of a request."""


class Sample(NamedTuple):
    """The engine's counters at a time, in seconds since the start."""

    at_s: float
    stats: EngineStats


class StageWatch:
    """Samples the counters of a pipeline's engine while requests are answered, and adds up where their time went."""

    def __init__(self, pipe: Pipeline) -> None:
        self._pipe = pipe
        self._samples: list[Sample] = []
        self._cpu_s: dict[str, float] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch what happens in the block."""
        is_over = threading.Event()
        started_s = time.perf_counter()

        def sample() -> None:
            self._samples.append(Sample(time.perf_counter() - started_s, self._pipe.engine.stats()))

        def sample_until_over() -> None:
            while not is_over.wait(_SAMPLED_EVERY_S):
                sample()

        sampling = threading.Thread(target=sample_until_over, name="benchmark-stages", daemon=True)
        cpu_before = self._measure_cpu()
        sample()
        sampling.start()
        try:
            yield
        finally:
            is_over.set()
            sampling.join()
            sample()
            self._cpu_s = {who: seconds - cpu_before.get(who, 0.0) for who, seconds in self._measure_cpu().items()}

    def _measure_cpu(self) -> dict[str, float]:
        engine: int | None = getattr(self._pipe.engine.core, "pid", None)
        others = [child for child in children_of(os.getpid()) if child != engine]
        found = {"front": cpu_s(os.getpid()), "others": sum(map(cpu_s, others))}
        return found if engine is None else found | {"engine": cpu_s(engine)}

    def summarize(self, answers: Sequence[Response]) -> dict[str, Any]:
        """Return the figures, given the answers of all requests of the block."""
        timings = [answer.timings for answer in answers if answer.timings is not None]
        first, last = self._samples[0].stats, self._samples[-1].stats
        return {
            "passed_s": {
                **find_passed(self._samples, len(answers)),
                "launched": _halve([timing.time_to_first_token_s - timing.prefill_s for timing in timings]),
                "first_token": _halve([timing.time_to_first_token_s for timing in timings]),
                "complete": _halve([timing.total_s for timing in timings]),
            },
            "spent_s": sum_up_spent(timings),
            "engine": {
                "encoder_calls": last.total_encoder_calls - first.total_encoder_calls,
                "encoder_items": last.total_encoder_items - first.total_encoder_items,
                "steps": _num_steps(last) - _num_steps(first),
                "step_tokens": last.total_step_tokens - first.total_step_tokens,
                "preemptions": last.total_preemptions - first.total_preemptions,
                "kv_blocks": last.num_kv_blocks,
            },
            "cpu_s": {who: round(seconds, 2) for who, seconds in self._cpu_s.items()},
        }


def find_passed(samples: Sequence[Sample], num_requests: int) -> dict[str, dict[str, float]]:
    """Return when half and all of the requests were prepared, and of the pictures encoded, if any were."""
    found = {"prepared": _find_moments([(at_s, num_requests - stats.num_preparing) for at_s, stats in samples])}
    before = samples[0].stats.total_encoder_items
    if samples[-1].stats.total_encoder_items > before:
        found["encoded"] = _find_moments([(at_s, stats.total_encoder_items - before) for at_s, stats in samples])
    return found


def _find_moments(counts: Sequence[tuple[float, int]]) -> dict[str, float]:
    """Return after which sample half of the final count, and all of it, was never missing again."""
    goal = counts[-1][1]

    def find(num: float) -> float:
        missing = [index for index, (_, count) in enumerate(counts) if count < num]
        return round(counts[missing[-1] + 1 if missing else 0][0], 2)

    return {"half": find(goal / 2), "last": find(goal)}


def _halve(moments_s: Sequence[float]) -> dict[str, float]:
    return {"half": round(statistics.median(moments_s), 2), "last": round(max(moments_s), 2)}


def sum_up_spent(timings: Sequence[StageTimings]) -> dict[str, dict[str, float]]:
    """Return the median and the longest time in each stage in which a request spent any."""
    spent = {}
    for stage in fields(timings[0]):
        seconds = [getattr(timing, stage.name) for timing in timings]
        longest_s = round(max(seconds), 4)
        if stage.name not in _MOMENTS and longest_s > 0:
            median_s = round(statistics.median(seconds), 4)
            spent[stage.name.removesuffix("_s")] = {"median": median_s, "longest": longest_s}
    return spent


def _num_steps(stats: EngineStats) -> int:
    return sum(count for _, count in stats.step_sizes)

"""Counts of the steps of an engine loop."""

from __future__ import annotations

import threading

from seesay.llm.plans.step_plan import StepPlan
from seesay.values import EngineStats


class StepCounts:
    """Written by the loop's thread, read by any."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}  # rows of a step → number of steps
        self._num_tokens = 0
        self._num_not_finite = 0
        self._lock = threading.Lock()

    def add(self, plan: StepPlan) -> None:
        """Count a step that was computed."""
        with self._lock:
            self._sizes[len(plan.rows)] = self._sizes.get(len(plan.rows), 0) + 1
            self._num_tokens += plan.num_tokens

    def add_not_finite(self) -> None:
        """Count a row for which NaN or infinity was computed."""
        with self._lock:
            self._num_not_finite += 1

    def stats(self) -> EngineStats:
        """Return the counts."""
        with self._lock:
            return EngineStats(
                step_sizes=tuple(sorted(self._sizes.items())),
                total_step_tokens=self._num_tokens,
                total_not_finite=self._num_not_finite,
            )

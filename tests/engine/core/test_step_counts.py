"""Counts of the steps of a loop."""

from __future__ import annotations

import threading

from seesay.engine.core.step_counts import StepCounts
from seesay.llm.plans.step_plan import Row, StepPlan


def make_plan(*sizes: int) -> StepPlan:
    """A step with rows of so many tokens."""
    return StepPlan(rows=tuple(Row(number, 0, size, True) for number, size in enumerate(sizes)))


def test_steps_are_counted_by_their_rows_and_with_their_tokens() -> None:
    counts = StepCounts()
    for plan in (make_plan(4, 5, 6), make_plan(1), make_plan(2, 2, 2), make_plan(1, 3)):
        counts.add(plan)
    stats = counts.stats()
    assert stats.step_sizes == ((1, 1), (2, 1), (3, 2)) and stats.total_step_tokens == 26
    assert stats.total_not_finite == 0


def test_rows_that_are_not_finite_are_counted_one_by_one() -> None:
    counts = StepCounts()
    assert counts.stats().step_sizes == () and counts.stats().total_step_tokens == 0
    for number in (1, 2, 3):
        counts.add_not_finite()
        assert counts.stats().total_not_finite == number


def test_another_thread_reads_them_between_two_changes() -> None:
    """Nobody waits for a count for ever: each of them lets go of the lock."""
    counts, seen = StepCounts(), list[int]()

    def read() -> None:
        seen.append(counts.stats().total_step_tokens)

    for number in (1, 2):
        counts.add(make_plan(7))
        counts.add_not_finite()
        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        thread.join(60)
        assert seen[-1] == 7 * number

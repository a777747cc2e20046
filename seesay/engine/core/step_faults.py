"""Decides how an engine goes on when something in its loop fails. Used by the loop's thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from seesay.device.query import is_out_of_memory, release_cached_memory
from seesay.engine.core.step_pipeline import StepFailedError
from seesay.engine.core.suspects import Suspects
from seesay.errors import describe
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.scheduling.scheduler import Scheduler

if TYPE_CHECKING:
    from seesay.llm.running.runner import ModelRunner

logger = logging.getLogger("seesay")

_MAX_FAILED_STEPS = 64
"""Steps that may fail one after another without a commit or the end of a request: the rows of a step are halved
until one row fails alone, so that more mean that nothing can be computed."""
_MAX_RESTARTS = 3
"""Times that the loop begins anew without a commit in between."""


class EngineLostError(Exception):
    """The engine can compute nothing any more."""


class StepFaults:
    """Counts what failed since the last commit, and chooses the rows that are tried next."""

    def __init__(
        self, scheduler: Scheduler, suspects: Suspects, fail_row: Callable[[int, BaseException], None]
    ) -> None:
        """`fail_row` ends the request of a row that cannot be computed."""
        self._scheduler = scheduler
        self._suspects = suspects
        self._fail_row = fail_row
        self._num_failed_steps = self._num_restarts = 0

    def note_commit(self) -> None:
        """Something was computed."""
        self._num_failed_steps = self._num_restarts = 0

    def note_restart(self) -> None:
        """The loop begins anew. Raises `EngineLostError` where that happens again and again."""
        self._num_restarts += 1
        if self._num_restarts > _MAX_RESTARTS:
            raise EngineLostError("the engine loop fails again and again")

    def pass_group(self, plan: StepPlan, suspects: Iterable[int] | None) -> None:
        """The step of the group went well: others follow, unless it is only on its way to where it failed before."""
        if not (plan.rows and self._scheduler.is_behind(suspects or ())):
            self._suspects.pass_group()

    def recover(self, failure: StepFailedError, runner: ModelRunner) -> None:
        """Go on after a step that failed. All that was in flight is planned again, in halves of the failed step's rows:
        so one row's fault does not end the others, and only the row that fails alone ends."""
        error = failure.error
        self._num_failed_steps += 1
        if is_out_of_memory(error):
            error.__traceback__ = None
            release_cached_memory(runner.device)
        try:
            runner.check_device()
        except BaseException as lost:
            raise EngineLostError(f"{runner.device} failed: {describe(lost)}") from error
        if self._num_failed_steps > _MAX_FAILED_STEPS:
            raise EngineLostError("one step after another fails") from error
        plan = failure.plan
        self._scheduler.abandon(failure.lost)
        seq_ids = [row.seq_id for row in plan.rows]
        if len(seq_ids) == 1 and not (plan.saves or plan.loads or plan.copies):
            self._suspects.pass_group()
            self._num_failed_steps = 0
            self._fail_row(seq_ids[0], error)
        else:
            self._suspects.split(seq_ids)

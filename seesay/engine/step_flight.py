"""The steps between plan and commit: launched, collected, and computed again row by row when something failed.

Used by the engine loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, NamedTuple

from seesay.device.query import is_out_of_memory, release_cached_memory
from seesay.llm.step_plan import StepPlan

if TYPE_CHECKING:
    from seesay.device.tower_pacer import TowerPacer
    from seesay.llm.launched_step import LaunchedStep, StepResult
    from seesay.llm.runner import ModelRunner
    from seesay.llm.sampling_row import LogitsProcessor
    from seesay.llm.step_input import Splices


class _InFlight(NamedTuple):
    """A step that is being computed, and all that it takes to compute it again."""

    plan: StepPlan
    splices: Mapping[int, Splices]
    launched: LaunchedStep


class StepFlight:
    """Computes plans with `runner`, at most two at a time: while one is computed, the next is launched.

    live: ids of the sequences that are not over. processors: those of live sequences that have any.
    commit(plan, result): apply the outcome of a plan. Called for every plan, or for each of its rows alone, in order.
    fail(seq_id, error): end a sequence whose row failed when it was computed alone.
    """

    def __init__(
        self,
        runner: ModelRunner,
        pacer: TowerPacer,
        *,
        live: Container[int],
        processors: Mapping[int, tuple[LogitsProcessor, ...]],
        commit: Callable[[StepPlan, StepResult], None],
        fail: Callable[[int, BaseException], None],
    ) -> None:
        self._runner = runner
        self._pacer = pacer
        self._live = live
        self._processors = processors
        self._commit = commit
        self._fail = fail
        self._in_flight: _InFlight | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no step is being computed."""
        return self._in_flight is None

    def forget(self) -> None:
        """Drop the step in flight: its sequences are over."""
        self._in_flight = None

    def launch(self, plan: StepPlan, splices: Mapping[int, Splices]) -> None:
        """Launch a plan, which then is in flight, and commit the one that was. A plan that cannot be launched is
        computed row by row. `splices`: as of `ModelRunner.launch`."""
        try:
            with self._pacer.step(self._runner.stream):
                launched = self._launch_and_sample(plan, splices)
        except BaseException as error:
            failure = error
        else:
            before, self._in_flight = self._in_flight, _InFlight(plan, splices, launched)
            if before is not None:
                self._collect(before)
            return
        self.collect()
        self._recover(plan, splices, failure)

    def collect(self) -> None:
        """Wait for the step in flight, if there is one, and commit it."""
        if self._in_flight is not None:
            before, self._in_flight = self._in_flight, None
            self._collect(before)

    def _launch_and_sample(self, plan: StepPlan, splices: Mapping[int, Splices]) -> LaunchedStep:
        launched = self._runner.launch(plan, splices)
        self._runner.sample(launched, processors=self._processors)
        return launched

    def _collect(self, step: _InFlight) -> None:
        """Wait for a step and commit it."""
        try:
            result = step.launched.collect()
        except BaseException as error:
            failure = error
        else:
            self._commit(step.plan, result)
            return
        # The step in flight began with tokens and blocks of the failed one: its results mean nothing.
        behind, self._in_flight = self._in_flight, None
        self._recover(step.plan, step.splices, failure)
        if behind is not None:
            self._compute_row_by_row(behind.plan, behind.splices)

    def _recover(self, plan: StepPlan, splices: Mapping[int, Splices], error: BaseException) -> None:
        """Go on after a plan failed. One row's fault must not end the others: each is computed alone, and only those
        that fail again end."""
        if is_out_of_memory(error):
            error.__traceback__ = None
            release_cached_memory(self._runner.device)
        if len(plan.rows) == 1:
            self._fail(plan.rows[0].seq_id, error)
        else:
            self._compute_row_by_row(plan, splices)

    def _compute_row_by_row(self, plan: StepPlan, splices: Mapping[int, Splices]) -> None:
        """Compute and commit each row of a plan alone, with nothing in flight."""
        for row in plan.rows:
            if row.seq_id not in self._live:  # it ended meanwhile
                continue
            alone = StepPlan(rows=(row,))
            try:
                launched = self._launch_and_sample(alone, splices)
            except BaseException as error:
                self._recover(alone, splices, error)
            else:
                self._collect(_InFlight(alone, splices, launched))

"""The steps between plan and commit: launched, collected, and computed again row by row when something failed.

Used by the engine loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from seesay.device.query import is_out_of_memory, release_cached_memory
from seesay.llm.plans.step_plan import StepPlan

if TYPE_CHECKING:
    from seesay.device.tower_pacer import TowerPacer
    from seesay.encoders.store import EmbeddingStore
    from seesay.engine.core.grammar_rows import GrammarRows
    from seesay.llm.running.launched_step import LaunchedStep, StepResult
    from seesay.llm.running.runner import ModelRunner
    from seesay.llm.running.sampling_row import LogitsProcessor
    from seesay.llm.running.step_input import Splices


class _InFlight(NamedTuple):
    """A step that is being computed, and all that it takes to compute it again. is_alone: whether no call of the tower
    runs beside it."""

    plan: StepPlan
    splices: Mapping[int, Splices]
    launched: LaunchedStep
    is_alone: bool = True


class StepPipeline:
    """Computes plans with `runner`, at most two at a time: while one is computed, the next is launched.

    live: ids of the sequences that are not over. processors: those of live sequences that have any. grammars: make the
    masks of their rows. A step with masks is sampled when the one before is committed, while its forward pass runs.
    commit(plan, result): apply the outcome of a plan. Called for every plan, or for each of its rows alone, in order.
    The result of a step that shared the GPU with the tower has no duration.
    announce_forced_tokens(seq_id, num_tokens): so many tokens will be committed of a row of the newest plan that
    samples, not one. fail(seq_id, error): end a sequence whose row cannot be computed, or failed when it was computed
    alone.
    """

    def __init__(
        self,
        runner: ModelRunner,
        pacer: TowerPacer,
        *,
        live: Container[int],
        processors: Mapping[int, tuple[LogitsProcessor, ...]],
        grammars: GrammarRows,
        commit: Callable[[StepPlan, StepResult], None],
        announce_forced_tokens: Callable[[int, int], None],
        fail: Callable[[int, BaseException], None],
    ) -> None:
        self._runner = runner
        self._pacer = pacer
        self._live = live
        self._processors = processors
        self._grammars = grammars
        self._commit = commit
        self._foretell = announce_forced_tokens
        self._fail = fail
        self._in_flight: _InFlight | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no step is being computed."""
        return self._in_flight is None

    def forget(self) -> None:
        """Drop the step in flight: its sequences are over."""
        self._in_flight = None

    def end_impossible(self, plan: StepPlan, store: EmbeddingStore) -> tuple[StepPlan, Mapping[int, Splices]]:
        """End the sequences whose rows cannot be computed, before any row is. Returns the plan without these rows, and
        the embeddings that go into the others."""
        splices, errors = self._runner.find_splices(plan, store)
        for seq_id, error in errors.items():
            self._fail(seq_id, error)
        if errors:
            plan = replace(plan, rows=tuple(row for row in plan.rows if row.seq_id not in errors))
        return plan, splices

    def launch(self, plan: StepPlan, splices: Mapping[int, Splices]) -> None:
        """Launch a plan, which then is in flight, and commit the one that was. A plan that cannot be launched is
        computed row by row. `splices`: as of `ModelRunner.launch`."""
        has_masks = self._grammars.concerns(plan)
        failure: BaseException | None = None
        try:
            with self._pacer.step(self._runner.stream) as is_alone:
                launched = self._runner.launch(plan, splices)
                if not has_masks:
                    self._runner.sample(launched, processors=self._processors)
        except BaseException as error:
            failure = error
        if failure is None and has_masks:
            if not self.collect():  # the forward pass goes on meanwhile
                self._compute_row_by_row(plan, splices)
                return
            try:
                self._sample(plan, launched)
            except BaseException as error:
                failure = error
        if failure is not None:
            self.collect()
            self._recover(plan, splices, failure)
            return
        before, self._in_flight = self._in_flight, _InFlight(plan, splices, launched, is_alone)
        if before is not None:
            self._collect(before)

    def collect(self) -> bool:
        """Wait for the step in flight, if there is one, and commit it. Returns False where it failed and was computed
        again: what was launched behind it means nothing."""
        before, self._in_flight = self._in_flight, None
        return before is None or self._collect(before)

    def _launch_and_sample(self, plan: StepPlan, splices: Mapping[int, Splices]) -> LaunchedStep:
        """All plans before are committed."""
        launched = self._runner.launch(plan, splices)
        self._sample(plan, launched)
        return launched

    def _sample(self, plan: StepPlan, launched: LaunchedStep) -> None:
        """Sample a step when all plans before are committed. A row whose mask cannot be made ends its sequence, and
        what it samples is dropped."""
        masks, errors = self._grammars.make_masks(plan)
        for seq_id, error in errors.items():
            self._fail(seq_id, error)
        if masks is not None:
            for seq_id, token_ids in masks.jumps.items():
                self._foretell(seq_id, len(token_ids))
        self._runner.sample(launched, masks, processors=self._processors)

    def _collect(self, step: _InFlight) -> bool:
        """Wait for a step and commit it. Returns False where it failed and was computed again."""
        try:
            result = step.launched.collect()
        except BaseException as error:
            failure = error
        else:
            self._commit(step.plan, result if step.is_alone else replace(result, seconds=None))
            return True
        # The step in flight began with tokens and blocks of the failed one: its results mean nothing.
        behind, self._in_flight = self._in_flight, None
        self._recover(step.plan, step.splices, failure)
        if behind is not None:
            self._compute_row_by_row(behind.plan, behind.splices)
        return False

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

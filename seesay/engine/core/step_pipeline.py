"""The steps between plan and commit: while one is computed, the next is launched. Used by the engine loop's thread.

A step that fails is not computed again here: `StepFailedError` names the plans that are lost, and the next plans decide
how to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, TypeVar

from seesay.llm.plans.step_plan import StepPlan

if TYPE_CHECKING:
    from seesay.device.tower_pacer import TowerPacer
    from seesay.encoders.store import EmbeddingStore
    from seesay.engine.core.grammars.step_masks import BegunMasks, StepMasks
    from seesay.llm.plans.step_plan import TokenMasks
    from seesay.llm.running.launched_step import LaunchedStep, StepResult
    from seesay.llm.running.runner import ModelRunner
    from seesay.llm.running.sampling_row import LogitsProcessor

Outcome = TypeVar("Outcome")


class StepFailedError(Exception):
    """A step could not be computed, for the reason `error`. `plan`: its plan. `lost`: the plans that are not committed
    and never will be, this one first."""

    def __init__(self, plan: StepPlan, error: BaseException, *behind: StepPlan) -> None:
        super().__init__(f"a step of {len(plan.rows)} rows failed: {error}")
        self.plan = plan
        self.error = error
        self.lost = (plan, *behind)


class _InFlight(NamedTuple):
    """A step that is being computed. is_alone: whether no call of the tower runs beside it. begun, masks: what it is
    sampled with, before and after it is finished."""

    plan: StepPlan
    launched: LaunchedStep
    is_alone: bool
    begun: BegunMasks | None = None
    masks: TokenMasks | None = None


class StepPipeline(Generic[Outcome]):
    """Computes plans with `runner`, at most two at a time.

    processors: those of live sequences that have any. masks: makes those of rows, when the step before is committed,
    while the forward pass runs. A step with masks is sampled just before the next one is launched, so that this one is
    planned meanwhile. With a runner that `samples_late`, each step is sampled when the next one is launched.
    commit(plan, result): apply the outcome of a plan. Called for every plan, in order. The result of a step that shared
    the GPU with the tower has no duration. What it returns goes to `hand_out`: when masks that wait for this plan have
    been begun, and before anything else.
    announce_forced_tokens(seq_id, num_tokens): so many tokens will be committed of a row of the newest plan that
    samples, not one. fail(seq_id, error): end a sequence whose row cannot be computed.
    """

    def __init__(
        self,
        runner: ModelRunner,
        pacer: TowerPacer,
        *,
        processors: Mapping[int, tuple[LogitsProcessor, ...]],
        masks: StepMasks,
        commit: Callable[[StepPlan, StepResult], Outcome],
        hand_out: Callable[[Outcome], None],
        announce_forced_tokens: Callable[[int, int], None],
        fail: Callable[[int, BaseException], None],
    ) -> None:
        self._runner = runner
        self._pacer = pacer
        self._processors = processors
        self._masks = masks
        self._commit = commit
        self._hand_out = hand_out
        self._announce_forced_tokens = announce_forced_tokens
        self._fail = fail
        self._in_flight: _InFlight | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no step is being computed."""
        return self._in_flight is None

    def forget(self) -> None:
        """Drop the step in flight."""
        self._in_flight = None

    def prepare(self) -> None:
        """Finish the masks of the step in flight before a plan is made, if its rows may get several tokens. Raises
        `StepFailedError`."""
        step = self._in_flight
        if step is not None and step.begun is not None and step.begun.may_jump:
            self._in_flight, _ = self._finish_masks(step)

    def launch(self, plan: StepPlan, store: EmbeddingStore) -> bool:
        """Launch a plan, which then is in flight, and commit the one that was. Sequences whose rows cannot be computed
        end. Returns whether any row is left; else the step before stays in flight. Raises `StepFailedError`."""
        sampling = self._choose_sampling(plan)
        failure, begun = None, None
        plan = self._sample_masked(plan)
        try:
            with self._pacer.step(self._runner.stream) if plan.rows else nullcontext(True) as is_alone:
                plan, launched, errors = self._runner.step(plan, store)
                if launched is not None and sampling == "at once":
                    self._runner.sample(launched, processors=self._processors)
        except BaseException as error:
            failure = error
        if failure is not None:
            self.collect(plan)
            raise StepFailedError(plan, failure) from failure
        for seq_id, refusal in errors.items():
            self._fail(seq_id, refusal)
        if launched is None:
            return False
        if sampling == "behind the last":
            begun = self._begin_behind_last(plan)  # the forward pass goes on meanwhile
        before, self._in_flight = self._in_flight, _InFlight(plan, launched, is_alone, begun)
        if before is not None:
            self._hand_out(self._collect(before, plan))
        return True

    def _sample_masked(self, plan: StepPlan) -> StepPlan:
        """Sample the step in flight, before `plan`, if it has waited for its masks alone. Returns the plan without the
        sequences that end as they have no mask."""
        step = self._in_flight
        if step is None or self._runner.samples_late or step.launched.is_sampled:
            return plan
        step, failed = self._finish_masks(step, plan)
        self._in_flight = step
        self._sample(step, plan)
        return plan.without(failed)

    def _choose_sampling(self, plan: StepPlan) -> Literal["at once", "behind the last", "before the next"]:
        """Return when a plan is sampled: masks need the tokens of the step before, and a late runner the next step."""
        if self._runner.samples_late:
            return "before the next"
        return "behind the last" if self._masks.concerns(plan) else "at once"

    def collect(self, *behind: StepPlan) -> None:
        """Wait for the step in flight, if there is one, and commit it. `behind`: plans that were taken after it. Raises
        `StepFailedError`."""
        step, self._in_flight = self._in_flight, None
        if step is not None:
            self._hand_out(self._collect(step, *behind))

    def _begin_behind_last(self, plan: StepPlan) -> BegunMasks | None:
        """Commit the step in flight, and begin to make the masks of the one behind it."""
        step, self._in_flight = self._in_flight, None
        if step is None:
            return _begin_masks(self._masks, plan)
        outcome = self._collect(step, plan)
        try:
            return _begin_masks(self._masks, plan)
        finally:
            self._hand_out(outcome)

    def _finish_masks(self, step: _InFlight, *behind: StepPlan) -> tuple[_InFlight, Container[int]]:
        """Return a step with its masks, and the sequences that end as their rows have none: what these sample is
        dropped. Rows get several tokens only where no plan was made behind this one."""
        if step.begun is None:
            return step, ()
        try:
            masks, errors = self._masks.finish(step.begun, can_jump=not behind)
        except BaseException as error:
            self._in_flight = None
            raise StepFailedError(step.plan, error, *behind) from error
        for seq_id, refusal in errors.items():
            self._fail(seq_id, refusal)
        if masks is not None:
            for seq_id, token_ids in masks.jumps.items():
                self._announce_forced_tokens(seq_id, len(token_ids))
        return step._replace(begun=None, masks=masks), errors

    def _sample(self, step: _InFlight, *behind: StepPlan) -> None:
        try:
            self._runner.sample(step.launched, step.masks, processors=self._processors)
        except BaseException as error:
            self._in_flight = None
            raise StepFailedError(step.plan, error, *behind) from error

    def _collect(self, step: _InFlight, *behind: StepPlan) -> Outcome:
        """Wait for a step and commit it. Returns what is to be handed out. Steps behind it began with its tokens and
        blocks: if it fails, they are lost."""
        try:
            if not step.launched.is_sampled:
                if self._runner.samples_late:
                    step = step._replace(begun=_begin_masks(self._masks, step.plan))
                step, _ = self._finish_masks(step, *behind)
                self._sample(step)
            result = self._runner.collect(step.launched)
        except StepFailedError as failure:
            self._in_flight = None
            raise StepFailedError(step.plan, failure.error, *behind) from failure.error
        except BaseException as error:
            self._in_flight = None
            raise StepFailedError(step.plan, error, *behind) from error
        self._masks.take(step.plan, result.token_ids)
        return self._commit(step.plan, result if step.is_alone else replace(result, seconds=None))


def _begin_masks(masks: StepMasks, plan: StepPlan) -> BegunMasks | None:
    """Begin to make the masks of a step when all plans before are committed."""
    try:
        return masks.begin(plan)
    except BaseException as error:
        raise StepFailedError(plan, error) from error

"""Makes the steps of an engine: each is planned, launched and committed. Used by the loop's thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from seesay.device.tower_pacer import TowerPacer
from seesay.engine.core.embedding_supply import EmbeddingSupply
from seesay.engine.core.encoder_reports import EncoderReports
from seesay.engine.core.grammars.step_masks import StepMasks
from seesay.engine.core.live_requests import LiveRequests
from seesay.engine.core.request_ends import NewTokens, RequestEnds
from seesay.engine.core.step_counts import StepCounts
from seesay.engine.core.step_faults import StepFaults
from seesay.engine.core.step_pipeline import StepFailedError, StepPipeline
from seesay.engine.core.suspects import Suspects
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.scheduling.scheduler import Scheduler

if TYPE_CHECKING:
    from seesay.engine.core.live_request import LiveRequest
    from seesay.engine.core.speculation.speculation import Speculation
    from seesay.llm.running.launched_step import StepResult
    from seesay.llm.running.runner import ModelRunner

logger = logging.getLogger("seesay")


class StepMaker:
    """Makes steps of what `scheduler` plans and `runner` computes, and goes on after those that fail.

    flight: the steps that are launched and not committed. suspects: the rows that are tried after a failure.
    speculation: what proposes tokens; without it, tokens are sampled one by one.
    """

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Scheduler,
        *,
        embeddings: EmbeddingSupply,
        requests: LiveRequests,
        ends: RequestEnds,
        masks: StepMasks,
        reports: EncoderReports,
        counts: StepCounts,
        pacer: TowerPacer,
        speculation: Speculation | None,
        is_ahead: bool,
    ) -> None:
        """`is_ahead`: launch each step while the one before is still being computed."""
        self._runner = runner
        self._scheduler = scheduler
        self._embeddings = embeddings
        self._requests = requests
        self._ends = ends
        self._reports = reports
        self._counts = counts
        self._pacer = pacer
        self._is_ahead = is_ahead
        self.speculation = speculation
        self.suspects = Suspects()
        self._faults = StepFaults(scheduler, self.suspects, self._fail_row)
        self.flight = StepPipeline(
            runner,
            pacer,
            processors=requests.processors,
            masks=masks,
            commit=self._commit,
            hand_out=ends.deliver_all,
            announce_forced_tokens=scheduler.announce_forced_tokens,
            fail=self._fail_row,
        )

    def close(self) -> None:
        """Let go of the models and their caches, whose memory is freed then and there."""
        self.speculation = None
        del self._runner, self._faults, self.flight  # the last two refer to this object

    def begin(self, request: LiveRequest) -> None:
        """Note a request that the scheduler has now."""
        if self.speculation is not None:
            is_ruled = request.grammar is not None or request.thought is not None
            self.speculation.begin(request.sequence, is_ruled=is_ruled)

    def drop(self, request_id: int) -> None:
        """Keep nothing of a request that has ended."""
        if self.speculation is not None:
            self.speculation.drop(request_id)

    def begin_anew(self) -> None:
        """Forget all steps and sequences. Raises `EngineLostError` where that happens again and again."""
        self._faults.note_restart()
        self.flight.forget()
        self.suspects.clear()
        self._scheduler.reset()
        if self.speculation is not None:
            self.speculation.clear()

    def make(self) -> bool:
        """Plan and launch a step, and commit the one in flight. Returns whether another may follow at once."""
        drafts = self._propose()
        self._attempt(self.flight.prepare)
        suspects = self.suspects.group
        plan = self._scheduler.plan_step(suspects, drafts)
        self._embeddings.start_encoding(plan.encode_jobs)
        has_more = bool(plan.rows) or not self.flight.is_empty or suspects is not None
        try:
            if plan.rows:
                self._requests.note_launch(plan)
            is_launched = self.flight.launch(plan, self._embeddings.store)
            if not is_launched or not self._is_ahead or suspects is not None or drafts:
                self.flight.collect()
        except StepFailedError as failure:
            self._recover(failure)
        else:
            self._faults.pass_group(plan, suspects)
        self._embeddings.release(self._scheduler.take_released())
        if not has_more:
            self._pacer.rest()
        return has_more

    def _propose(self) -> Mapping[int, tuple[int, ...]]:
        """Return the tokens that sequences propose for the next step. Then the step in flight is committed: they follow
        its tokens."""
        if self.speculation is None or self.suspects.group is not None:
            return {}
        num_rows = self._scheduler.num_running
        if not self.speculation.is_wanted(num_rows):
            return {}
        self.finish()
        return self.speculation.propose(num_rows) if self.suspects.group is None else {}

    def _recover(self, failure: StepFailedError) -> None:
        """Go on after a step that failed, without what is in flight."""
        logger.warning("%s; its rows are computed again", failure)
        self.flight.forget()
        self._faults.recover(failure, self._runner)

    def finish(self) -> None:
        """Wait for the step in flight."""
        self._attempt(self.flight.collect)

    def _attempt(self, go_on: Callable[[], None]) -> None:
        """Go on with the step in flight. If it fails, its rows are computed again."""
        try:
            go_on()
        except StepFailedError as failure:
            self._recover(failure)

    def _commit(self, plan: StepPlan, result: StepResult) -> list[NewTokens]:
        """Apply the outcome of a plan, and end the requests that are complete. Returns what the others have got."""
        self._faults.note_commit()
        self._reports.take()  # of a tower call before this step: what it cost, or that it failed
        self._counts.add(plan)
        if result.seconds is not None:
            self._scheduler.observe_step(plan, result.seconds)
        for seq_id, error in result.errors.items():
            if seq_id in result.not_finite and seq_id in self._requests.by_id:
                self._counts.add_not_finite()
                self._scheduler.forget_blocks(seq_id)
            self._ends.fail(seq_id, error)
        self._requests.add_rows(result.rows)
        logprobs = {row.seq_id: row.logprobs for row in result.rows}
        going_on: list[NewTokens] = []
        for update in self._scheduler.commit_step(plan, result.token_ids, result.drafted):
            request = self._requests.by_id[update.seq.seq_id]
            request.note_token()
            if self.speculation is not None:
                self.speculation.follow(request.request_id, update.token_ids)
            delivery = request, update, logprobs.get(request.request_id, ())
            if update.finish_reason is None:
                going_on.append(delivery)
            else:
                self._ends.deliver(*delivery)
        return going_on

    def _fail_row(self, request_id: int, error: BaseException) -> None:
        """End a request whose row cannot be computed, or let the tower's report do that."""
        request = self._requests.by_id.get(request_id)
        if request is None or not self._reports.try_blame(request, error):
            self._ends.fail(request_id, error)

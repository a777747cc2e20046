"""Chooses the rows of a step, and reserves their blocks."""

from __future__ import annotations

from collections.abc import Container, Mapping
from itertools import count

from seesay.llm.plans.step_plan import MAX_DRAFTS, UNPROPOSED, EncodeJob, Row, StepPlan
from seesay.llm.scheduling.admission import Admission
from seesay.llm.scheduling.live_sequences import LiveSequences
from seesay.llm.scheduling.open_step import OpenStep
from seesay.llm.scheduling.preemption import Preemption
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.sequence import Sequence, SequenceStatus
from seesay.llm.scheduling.token_budget import Candidates, TokenBudget

_MAX_READMITTED = 64
"""Sequences that wait for nothing any more and are looked at together."""
_MAX_ROUNDS = 4
"""How often a plan with rows looks at more of them."""


class StepPlanner:
    """Plans the steps of a scheduler: rows of running sequences first, then those that begin."""

    def __init__(
        self,
        config: SchedulerConfig,
        live: LiveSequences,
        *,
        preemption: Preemption,
        admission: Admission,
        budget: TokenBudget,
    ) -> None:
        self._config = config
        self._live = live
        self._pool = live.pool
        self._preemption = preemption
        self._admission = admission
        self._budget = budget

    def plan(self, only: Container[int] | None, drafts: Mapping[int, tuple[int, ...]]) -> StepPlan:
        """See `Scheduler.plan_step`."""
        self._live.readmit(_MAX_READMITTED)
        yielding = None
        if only is None:
            yielding = self._preemption.find_yielding(lacks_blocks=self._admission.lacks_blocks)
        yielded_ids: tuple[int, ...] = ()
        if yielding is not None and not yielding.is_in_flight:
            self._preemption.preempt(yielding)
            yielded_ids = (yielding.seq_id,)
        candidates = self._find_candidates(only, yielding)
        step = self._budget.open_step(candidates, only)
        self._plan_running(step, candidates, drafts)
        jobs = self._plan_waiting(step)
        return self._close(step, jobs, yielded_ids)

    def _find_candidates(self, only: Container[int] | None, yielding: Sequence | None) -> Candidates:
        return [
            (seq, missing)
            for seq in self._live.running
            if seq is not yielding and (only is None or seq.seq_id in only) and (missing := self._count_missing(seq))
        ]

    def _plan_running(self, step: OpenStep, candidates: Candidates, drafts: Mapping[int, tuple[int, ...]]) -> None:
        """Plan the running sequences that lack tokens."""
        for seq, missing in candidates:
            if seq.status is not SequenceStatus.RUNNING:  # preempted for an older one
                continue
            num_tokens = self._reserve(step, seq, missing)
            if num_tokens is None:
                # Younger ones hold the blocks and are in flight: they pause, so that the next plan can preempt them.
                step.spare = 0
                return
            if not num_tokens:
                pass
            elif missing == 1:
                step.singles -= 1
            else:
                step.spare -= step.shares.spend(seq.owner, num_tokens)
            if num_tokens:
                proposed = self._fit_drafts(seq, num_tokens, drafts.get(seq.seq_id, ()), step.room_for_proposed)
                step.rows.append(self._make_row(seq, num_tokens, proposed))
                step.spend_proposed(_count_proposed(proposed))
            if seq.num_scheduled < seq.num_tokens:
                step.promised += max(0, self._pool.blocks_for(seq.num_tokens) - len(seq.block_ids))

    def _reserve(self, step: OpenStep, seq: Sequence, missing: int) -> int | None:
        """Return how many tokens a running sequence computes, with blocks for them; None for one that could, but for
        which there are no blocks."""
        allowed = min(step.singles, 1) if missing == 1 else min(missing, step.spare, step.shares.left(seq.owner))
        wanted = min(allowed, seq.ready_until - seq.num_scheduled)
        if missing > 1:
            wanted = seq.fit_chunk(seq.num_scheduled, wanted)
        if wanted <= 0:
            return 0
        if wanted <= len(seq.block_ids) * self._pool.block_size - seq.num_scheduled:
            return wanted  # most rows of a step: their block has room
        return self._preemption.reserve(seq, wanted, step.preempted) or None

    def _plan_waiting(self, step: OpenStep) -> list[EncodeJob]:
        """Begin waiting sequences. Returns the encode jobs to start."""
        jobs: list[EncodeJob] = []
        for num_rounds in count(1):
            self._admission.plan(step, self._make_row)
            more_jobs, admissible = self._live.needs.plan_jobs(
                self._live.count_beginning, self._config.max_prefill_token_num
            )
            jobs += more_jobs
            for seq in admissible:
                self._live.blocked.wake_one(seq)
            is_enough = step.preempted or step.only is not None or (step.rows and num_rounds == _MAX_ROUNDS)
            if is_enough or not self._live.blocked.has_woken:
                break
            self._live.readmit(_MAX_READMITTED)
        return jobs

    def _close(self, step: OpenStep, jobs: list[EncodeJob], yielded_ids: tuple[int, ...]) -> StepPlan:
        deltas = self._live.deltas.take()
        saves, loads = self._pool.host.take_copies()
        copies, state_copies = self._live.take_copies()
        has_copies = bool(saves or loads or copies or state_copies)
        assert step.rows or not has_copies, "blocks are taken for rows alone"
        return StepPlan(
            is_fresh=deltas.is_fresh,
            rows=tuple(step.rows),
            ended_ids=deltas.ended_ids,
            begun=deltas.begun,
            adapter_loads=self._live.adapters.take_loads(),
            added_blocks=deltas.added_blocks,
            saves=saves,
            loads=loads,
            copies=copies,
            state_copies=state_copies,
            encode_jobs=tuple(jobs),
            preempted_ids=(*yielded_ids, *step.preempted),
            is_streamed=any(row.num_known == 1 and self._live.by_id[row.seq_id].is_streamed for row in step.rows),
        )

    def _count_missing(self, seq: Sequence) -> int:
        """Tokens that a plan could hold of a running sequence. None ahead of a commit that will end it, or without
        which its next token cannot be chosen."""
        num_expected = seq.num_tokens + seq.num_pending
        missing = num_expected - seq.num_scheduled
        if not missing or not seq.num_pending:
            return missing
        params = seq.params
        is_over = (
            seq.waits_for_tokens
            or seq.num_drafts > 0
            or self._config.num_micro_batches > 1
            or num_expected - seq.num_prompt_tokens >= params.max_new_tokens
            or num_expected >= self._config.session_len
            or num_expected > self._pool.max_tokens
            or self._live.is_outgrown(seq, seq.num_pending)
        )
        return 0 if is_over else missing

    def _fit_drafts(self, seq: Sequence, num_tokens: int, proposed: tuple[int, ...], room: int) -> tuple[int, ...]:
        """Return the proposed tokens that a row of `num_tokens`, the last known one of `seq` among them, may have: all
        positions of the answer must be computed alike, and nobody is to lose blocks for tokens that may be wrong. room:
        most of them that the step may compute."""
        if not proposed or seq.num_pending or not seq.wants_answer or seq.num_tokens - seq.num_scheduled != num_tokens:
            return ()
        if num_tokens > 1 and (seq.snapshots is None or not seq.num_generated):
            return ()  # with a state, the tokens before a wrong one are computed once more
        end = min(self._config.session_len, self._pool.max_tokens)
        if proposed[0] != UNPROPOSED:  # rounds of a step go on behind the last token that some row wants
            end = min(end, seq.num_prompt_tokens + seq.params.max_new_tokens, seq.num_tokens + 1 + room)
        num_blocks = max(0, self._pool.num_available - len(self._live.running))
        end = min(end, (len(seq.block_ids) + num_blocks) * self._pool.block_size + 1)
        proposed = proposed[: max(0, min(end - seq.num_tokens - 1, MAX_DRAFTS))]
        return () if self._live.is_outgrown(seq, len(proposed)) else proposed

    def _make_row(self, seq: Sequence, num_tokens: int, drafts: tuple[int, ...] = ()) -> Row:
        self._live.keep_state(seq)
        drafts = drafts if drafts and self._live.spare_state(seq) else ()
        start = seq.num_scheduled
        seq.num_scheduled = start + num_tokens
        samples = seq.num_scheduled == seq.num_expected and seq.wants_answer
        seq.num_pending += samples
        if drafts:
            seq.num_drafts = len(drafts)
            seq.num_scheduled += len(drafts)
            num_tokens += len(drafts)
            more = self._pool.blocks_for(seq.num_scheduled) - len(seq.block_ids)
            seq.block_ids += self._pool.allocate(max(0, more))
        self._live.deltas.add_blocks(seq)
        return Row(seq_id=seq.seq_id, start=start, num_tokens=num_tokens, samples=samples, drafts=drafts)


def _count_proposed(proposed: tuple[int, ...]) -> int:
    """Return how many tokens of a step these take: none, if it proposes them itself, which it does without prompts."""
    return 0 if UNPROPOSED in proposed else len(proposed)

"""Applies computed steps to their sequences: new tokens, accepted drafts, ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from seesay.llm.plans.step_plan import DraftCounts, Row, StepPlan
from seesay.llm.scheduling.live_sequences import LiveSequences
from seesay.llm.scheduling.scheduler_config import find_misfit
from seesay.llm.scheduling.sequence import Sequence
from seesay.llm.scheduling.stopping import Stop, check_stop

if TYPE_CHECKING:
    from seesay.values import FinishReason


class SequenceUpdate(NamedTuple):
    """A change of a sequence: new tokens, its end, or both.

    `token_ids` include the token that ended it, which `stop_token_id` then names. A sequence whose `finish_reason` is
    set is no longer the scheduler's.
    """

    seq: Sequence
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: Exception | None = None


class StepCommit:
    """Commits the steps of a scheduler, and counts the tokens that came without a step of their own."""

    def __init__(self, live: LiveSequences, *, session_len: int) -> None:
        self._live = live
        self._pool = live.pool
        self._session_len = session_len
        self.total_jumped_tokens = self.total_draft_tokens = self.total_accepted_tokens = 0

    def apply(
        self, plan: StepPlan, sampled: Mapping[int, tuple[int, ...]], drafted: Mapping[int, DraftCounts]
    ) -> tuple[SequenceUpdate, ...]:
        """See `Scheduler.commit_step`."""
        by_id, updates = self._live.by_id, list[SequenceUpdate]()
        for row in plan.rows:
            seq = by_id.get(row.seq_id)
            if seq is not None and (update := self._apply_row(seq, row, sampled, drafted)) is not None:
                updates.append(update)
        if self._live.groups.is_awaited:
            self._live.settle_groups(plan.rows)
        return tuple(updates)

    def _apply_row(
        self, seq: Sequence, row: Row, sampled: Mapping[int, tuple[int, ...]], drafted: Mapping[int, DraftCounts]
    ) -> SequenceUpdate | None:
        """Apply a computed row of a live sequence. Returns its update, if it has new tokens or ends."""
        _, start, num_tokens, samples, drafts = row
        seq.num_pending -= samples
        stop = start + num_tokens
        assert seq.num_computed == start and seq.num_scheduled >= stop, (seq, start, stop)
        added, end = self._append_tokens(seq, sampled[seq.seq_id]) if samples else ((), None)
        if drafts:
            counts = drafted.get(seq.seq_id, DraftCounts(len(drafts), len(drafts)))
            accepted = min(counts.num_accepted, len(added) - 1)
            stop = self._settle_drafts(seq, counts._replace(num_accepted=accepted), start)
        seq.num_computed = stop
        if start < seq.media_end:
            self._live.needs.settle_computed(seq, stop)
        if stop // self._pool.block_size != seq.num_registered_blocks:
            self._live.prefix.register(seq)
        if samples:
            return self._go_on(seq, added, end)
        if seq.wants_answer or seq.num_computed != seq.num_tokens:
            return None
        self._live.end(seq, "length", None)
        return SequenceUpdate(seq=seq, finish_reason="length")

    def _settle_drafts(self, seq: Sequence, counts: DraftCounts, start: int) -> int:
        """Count the drafts of a row from `start`, and plan on behind those that were accepted. Returns where the
        computed tokens end: before the last known one, or at `start`, where a state is kept that a wrong one has
        changed."""
        num_drafts, num_accepted = counts
        self.total_draft_tokens += num_drafts
        self.total_accepted_tokens += num_accepted
        seq.num_drafted += num_drafts
        seq.num_accepted += num_accepted
        seq.num_drafts = 0
        has_state = self._live.settle_state(seq, is_right=num_accepted == num_drafts)
        seq.num_scheduled = seq.num_tokens - 1 if has_state else start
        return seq.num_scheduled

    def _append_tokens(self, seq: Sequence, token_ids: tuple[int, ...]) -> tuple[tuple[int, ...], Stop | None]:
        """Add sampled tokens up to the one that ends the sequence. Returns these, and why it ends."""
        num_added = 0
        if seq.num_foretold:
            assert len(token_ids) == seq.num_foretold + 1, (seq, token_ids)
            seq.num_pending -= seq.num_foretold
            self.total_jumped_tokens += seq.num_foretold
            seq.num_foretold = 0
        stop: Stop | None = None
        for token_id in token_ids:
            seq.append(token_id)
            num_added += 1
            stop = check_stop(seq, token_id, self._session_len)
            if stop:
                break
        assert num_added, f"no token was sampled for {seq}"
        return token_ids[:num_added], stop

    def _go_on(self, seq: Sequence, token_ids: tuple[int, ...], stop: Stop | None) -> SequenceUpdate:
        """Let a sequence that got `token_ids` go on, or end it."""
        if not stop and seq.num_tokens <= self._pool.max_tokens:
            if self._live.is_outgrown(seq):
                self._live.restart(seq)
            return SequenceUpdate(seq, token_ids)
        error = None if stop else find_misfit(seq.num_tokens, self._pool)
        if stop is None:
            stop = Stop("error")
        self._live.end(seq, stop.reason, error)
        return SequenceUpdate(
            seq=seq,
            token_ids=token_ids,
            finish_reason=stop.reason,
            stop_token_id=stop.token_id,
            error=error,
        )

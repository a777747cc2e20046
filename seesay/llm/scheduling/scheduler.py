"""Decides what the language engine computes next. Knows tokens, blocks and the state of embeddings; no tensors.

`plan_step` chooses rows and reserves their blocks, the runner computes them, `commit_step` applies the outcome. Plans
may be made ahead of commits, as long as they are computed and committed in their order: a row then may begin at a token
that an earlier row samples and that is not known yet. There is no prefill and no decode: in every step each sequence's
computed tokens catch up with its known tokens, those that lack one token first, then longer rows, under a token budget
and the limit of a `StepPolicy`. Owners take turns, and of one owner the oldest sequence is first, among those of one
priority. Not thread-safe: one engine loop owns a scheduler.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING

from seesay.llm.memory.resume_points import EveryToken
from seesay.llm.plans.step_plan import DraftCounts, StepPlan
from seesay.llm.plans.token_runs import TokenRuns
from seesay.llm.scheduling.admission import Admission
from seesay.llm.scheduling.embedding_demand import EmbeddingRef
from seesay.llm.scheduling.live_sequences import LiveSequences
from seesay.llm.scheduling.preemption import Preemption
from seesay.llm.scheduling.prefix import hash_prompt
from seesay.llm.scheduling.scheduler_config import (
    SchedulerConfig,
    check_prompt_length,
    check_run_length,
    find_misfit,
)
from seesay.llm.scheduling.sequence import Sequence, SequenceStatus
from seesay.llm.scheduling.step_commit import SequenceUpdate, StepCommit
from seesay.llm.scheduling.step_planner import StepPlanner
from seesay.llm.scheduling.step_policy import FixedChunks, StepPolicy
from seesay.llm.scheduling.token_budget import TokenBudget
from seesay.values import EngineStats

if TYPE_CHECKING:
    from seesay.llm.memory.resume_points import ResumePoints
    from seesay.llm.scheduling.pools.block_pool import BlockPool
    from seesay.llm.scheduling.state_slots import StateSlots
    from seesay.values import FinishReason


class Scheduler:
    """First come, first served within each owner, over the blocks of `pool`.

    Between owners, places, blocks and the prompt tokens of a step are divided equally, as far as each wants them
    (`fair_shares`): where all places are taken, the owner with the most gives one up to an owner with fewer.
    A sequence waits, runs (`Admission`), and may be preempted (`Preemption`): it then waits again at its old place and
    is recomputed. One that waits for blocks or for a place lets no other pass, so none starves.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        pool: BlockPool,
        *,
        policy: StepPolicy | None = None,
        resume_points: ResumePoints | None = None,
        states: StateSlots | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`policy` limits the prompt tokens of a step; by default by the fixed numbers of `config`.
        `states`: of layers that keep something of whole sequences. `resume_points`: of the layers' memory; by default
        those of `states`, or every token. `clock` gives seconds: the waiting times
        that the policy sees."""
        self.config = config
        self._pool = pool
        self._live = LiveSequences(
            pool,
            max_encode_ahead_tokens=config.max_encode_ahead_tokens,
            length_scaling=config.length_scaling,
            resume_points=resume_points or states or EveryToken(),
            states=states,
            num_adapter_slots=config.num_adapter_slots,
        )
        self._preemption = Preemption(self._live, max_batch_size=config.max_batch_size)
        self._admission = Admission(
            self._live, max_batch_size=config.max_batch_size, max_chunk=config.max_prefill_token_num
        )
        self._policy = policy or FixedChunks(
            max_streamed_tokens=config.max_streamed_tokens, max_encoding_tokens=config.max_encoding_tokens
        )
        self._clock = clock
        self._planner = StepPlanner(
            config,
            self._live,
            preemption=self._preemption,
            admission=self._admission,
            budget=TokenBudget(config, self._live, self._policy, clock),
        )
        self._commit = StepCommit(self._live, session_len=config.session_len)

    # --- in and out ---------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether any sequence is alive, waiting for an embedding included."""
        return bool(self._live.by_id)

    @property
    def num_running(self) -> int:
        """Sequences that are being computed."""
        return len(self._live.running)

    @property
    def sequences(self) -> Mapping[int, Sequence]:
        """All live sequences by id; a view."""
        return self._live.by_id

    def prepare(self, seq: Sequence) -> None:
        """Do what `add` would have to for a new sequence and takes long: hash its prompt. Any thread may call it before
        `add`, so that no step waits for it."""
        if seq.is_prepared:
            return
        if self.config.is_prefix_lm:
            seq.runs = TokenRuns.of_prompt(seq.num_run_tokens)
            seq.prompt_hash = hash_prompt(seq.token_ids[: seq.num_run_tokens], seq.items)
        elif self.config.media_run and seq.items:
            seq.runs = TokenRuns.of_media(item.slots for item in seq.items)
        elif self.config.attends_media and seq.items:
            seq.attend_media()
        self._live.prepare(seq)
        seq.is_prepared = True

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence. Raises `RequestError` for one that could never be answered."""
        assert seq.seq_id not in self._live.by_id, f"sequence {seq.seq_id} is alive already"
        assert seq.status is SequenceStatus.WAITING and seq.arrival < 0, seq
        assert not seq.adapter_id or self.config.num_adapter_slots, "there are no slots for adapters"
        check_prompt_length(seq.num_tokens, self.config.session_len, wants_answer=seq.wants_answer)
        if error := find_misfit(seq.num_tokens, self._pool):
            raise error
        if self.config.is_prefix_lm:
            check_run_length(seq.num_run_tokens, self.config.max_prefill_token_num)
        self.prepare(seq)
        self._live.add(seq, self._clock())

    def finish(self, seq_id: int, reason: FinishReason, error: Exception | None = None) -> bool:
        """End a sequence and give back its blocks. Returns whether it was alive."""
        seq = self._live.by_id.get(seq_id)
        if seq is None:
            return False
        self._live.end(seq, reason, error)
        return True

    def forget_blocks(self, seq_id: int) -> None:
        """Let nobody find the blocks of a sequence any more, those it shares included: something in them is wrong.
        Nothing happens when it has ended. Between steps, when no copies are planned."""
        if (seq := self._live.by_id.get(seq_id)) is not None:
            self._live.forget_blocks(seq)

    def forget_prefixes(self) -> None:
        """Empty the prefix cache, on the host too. Sequences that run keep their blocks, which nobody else finds."""
        self._live.forget_prefixes()

    def forget_adapter(self, adapter_id: int) -> None:
        """Free the slot of an adapter of which no sequence is running."""
        self._live.adapters.forget(adapter_id)

    def end_group(self, group_id: int) -> None:
        """No more sequences of this group come (see `SequenceGroups`)."""
        self._live.groups.end_group(group_id)

    def abort(self, seq_id: int) -> bool:
        """Abort a sequence. Returns whether it was alive."""
        return self.finish(seq_id, "abort")

    # --- embeddings ---------------------------------------------------------------------------------------------------

    def mark_ready(self, item_hash: bytes) -> None:
        """The embedding of this hash exists, and stays until `take_released` has named all its users."""
        self._live.needs.mark_ready(item_hash)
        self._live.blocked.wake(item_hash)

    def mark_failed(self, item_hash: bytes, error: Exception) -> tuple[SequenceUpdate, ...]:
        """The embedding of this hash cannot be made: ends the sequences that wait for it, and no others."""
        failed = self._live.needs.find_waiting(item_hash)
        for seq in failed:
            self._live.end(seq, "error", error)
        return tuple(SequenceUpdate(seq=seq, finish_reason="error", error=error) for seq in failed)

    def take_released(self) -> tuple[EmbeddingRef, ...]:
        """The embeddings of planned jobs that their sequence needs no more, each once: computed, covered by the prefix
        cache in the meantime, or the sequence has ended. Call it once per turn of the loop."""
        return self._live.needs.take_released()

    # --- jumps --------------------------------------------------------------------------------------------------------

    def announce_forced_tokens(self, seq_id: int, num_tokens: int) -> None:
        """The commit of a sequence's row that samples will bring so many tokens, which runners know already: the next
        row begins with them."""
        seq = self._live.by_id[seq_id]
        assert seq.num_pending and num_tokens > 1 and not seq.num_foretold, seq
        seq.num_pending += num_tokens - 1
        seq.num_foretold = num_tokens - 1

    # --- planning -----------------------------------------------------------------------------------------------------

    def plan_step(
        self, only: Container[int] | None = None, drafts: Mapping[int, tuple[int, ...]] | None = None
    ) -> StepPlan:
        """Choose the rows of the next step and the encode jobs to start; reserves the rows' blocks.

        An empty plan means that nothing can be done before an embedding, a commit or a new sequence arrives. Every plan
        is committed or abandoned; sequences whose rows could not be computed are ended before. only: no other sequences
        have rows, or begin. drafts: by sequence id, tokens that are likely to follow its known ones; those that
        fit are computed with the last known token, and may be wrong.
        """
        return self._planner.plan(only, drafts or {})

    def abandon(self, plans: Iterable[StepPlan]) -> None:
        """All plans that are not committed are lost; these are they. Their rows are planned again: sequences go on
        behind their committed tokens, and those that began with a block that was to be loaded or copied start again.
        What the copies were to move is found nowhere any more. The next plan is fresh."""
        self._live.abandon(plans)

    def is_behind(self, seq_ids: Iterable[int]) -> bool:
        """Whether any of these sequences is not computed again as far as it was in steps that failed."""
        found = (self._live.by_id.get(seq_id) for seq_id in seq_ids)
        return any(seq is not None and seq.num_computed < seq.num_lost for seq in found)

    def reset(self) -> None:
        """Forget all sequences and the contents of all blocks, whatever state they are in. The next plan is fresh."""
        self._pool.reset()
        self._live.reset()
        self._admission.reset()

    # --- committing ---------------------------------------------------------------------------------------------------

    def commit_step(
        self,
        plan: StepPlan,
        sampled: Mapping[int, tuple[int, ...]],
        drafted: Mapping[int, DraftCounts] | None = None,
    ) -> tuple[SequenceUpdate, ...]:
        """Apply a computed plan. `sampled` has, for each row that samples, the next tokens of its sequence, by id: one,
        and one more for each draft that was accepted. What was computed of the other drafts is void. `drafted`: the
        drafts of rows for which the runner proposed.

        Rows of sequences that ended in the meantime are ignored. Tokens after the one that ends a sequence are thrown
        away. A sequence that has grown into another stretch (see `LengthScaling`) waits to be computed again.
        Returns an update for each sequence that has new tokens or ends.
        """
        return self._commit.apply(plan, sampled, drafted or {})

    def observe_step(self, plan: StepPlan, seconds: float) -> None:
        """Tell the policy that the device computed a plan in `seconds`, if streamed answers went on in it: the
        predictions are for such steps, and others may be far longer."""
        if plan.is_streamed:
            self._policy.observe(plan.rows, seconds)

    # --- watching -----------------------------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """Return the counts of sequences, of the prefix cache, and of the blocks."""
        counts = EngineStats(
            num_running=len(self._live.running),
            num_waiting=len(self._live.waiting) + len(self._live.blocked),
            num_wanted_embedding_rows=self._live.needs.num_rows,
            total_prefix_queried_tokens=self._admission.total_prefix_queried_tokens,
            total_prefix_hit_tokens=self._admission.total_prefix_hit_tokens,
            total_preemptions=self._preemption.total_preemptions,
            total_jumped_tokens=self._commit.total_jumped_tokens,
            total_draft_tokens=self._commit.total_draft_tokens,
            total_accepted_tokens=self._commit.total_accepted_tokens,
        )
        return EngineStats.merge(counts, self._pool.stats())

    def check_integrity(self) -> None:
        """Assert all invariants of the scheduler, its sequences and its pool."""
        self._live.check_integrity(max_running=self.config.max_batch_size, session_len=self.config.session_len)

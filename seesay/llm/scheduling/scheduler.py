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
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from seesay.errors import ErrorCode, RequestError
from seesay.llm.memory.resume_points import EveryToken
from seesay.llm.plans.step_plan import MAX_DRAFTS, EncodeJob, Row, StepPlan
from seesay.llm.plans.token_runs import TokenRuns
from seesay.llm.scheduling.admission import Admission
from seesay.llm.scheduling.embedding_demand import EmbeddingRef
from seesay.llm.scheduling.fair_shares import TokenShares, divide_tokens
from seesay.llm.scheduling.live_sequences import LiveSequences
from seesay.llm.scheduling.preemption import Preemption
from seesay.llm.scheduling.prefix import hash_prompt
from seesay.llm.scheduling.sequence import Sequence, SequenceStatus
from seesay.llm.scheduling.step_policy import MAX_PROMPTS, FixedChunks, StepLoad, StepPolicy, WaitingPrompt
from seesay.llm.scheduling.stopping import Stop, check_stop
from seesay.values import EngineStats

if TYPE_CHECKING:
    from seesay.llm.memory.resume_points import ResumePoints
    from seesay.llm.plans.traits import LengthScaling
    from seesay.llm.scheduling.block_pool import BlockPool
    from seesay.llm.scheduling.state_slots import StateSlots
    from seesay.values import FinishReason


_MAX_READMITTED = 64
"""Sequences that wait for nothing any more and are looked at together."""
_MAX_ROUNDS = 4
"""How often a plan with rows looks at more of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of a scheduler.

    max_batch_size: most running sequences. max_prefill_token_num: most tokens in a step.
    max_streamed_tokens: most prompt tokens in a step that also computes streamed answers, so that none of them waits
        long for a prompt. max_encoding_tokens: most prompt tokens in a step while embeddings are being made, so that
        those already made are used soon. None: no such limit.
    session_len: most tokens of a sequence, prompt and answer.
    length_scaling: how the keys of a sequence depend on its length (`DecoderTraits`). None: they do not.
    max_encode_ahead_tokens: most embedding rows asked for and not used yet.
    attends_media: see `DecoderTraits`. An embedding counts among those rows for as long as tokens attend to it.
    num_adapter_slots: adapters that may be in use at a time.
    media_run, is_prefix_lm: see `DecoderConfig`. Tokens that see each other are computed in one step, for which it may
        exceed all limits: see `find_max_step_tokens`.
    num_micro_batches: steps that are computed at the same time, in stages: none begins at a token that an earlier one
        samples, and answers that go on are divided among them.
    """

    max_batch_size: int
    max_prefill_token_num: int
    session_len: int
    max_streamed_tokens: int | None = None
    max_encoding_tokens: int | None = None
    max_encode_ahead_tokens: int = 32768
    length_scaling: LengthScaling | None = None
    num_adapter_slots: int = 0
    media_run: int = 0
    attends_media: bool = False
    is_prefix_lm: bool = False
    num_micro_batches: int = 1

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_prefill_token_num", "session_len", "max_encode_ahead_tokens"):
            assert getattr(self, name) >= 1, f"{name}={getattr(self, name)}"
        assert self.max_streamed_tokens is None or self.max_streamed_tokens >= 1, self.max_streamed_tokens


def find_max_step_tokens(max_prefill_token_num: int, *, session_len: int, media_run: int, is_prefix_lm: bool) -> int:
    """Return the most tokens of a step, which takes all of a run that it begins with, although it has room for one
    token. The longest prompt that is a run is one that a step without anything else has room for."""
    longest = min(max_prefill_token_num, session_len) if is_prefix_lm else media_run
    return max_prefill_token_num + max(0, longest - 1)


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


def check_prompt_length(num_tokens: int, session_len: int, *, wants_answer: bool) -> None:
    """Raise `RequestError` for a prompt that is too long, or leaves no room for the answer that is wanted."""
    if num_tokens + wants_answer > session_len:
        what = "prompt and answer together may have" if wants_answer else "it may have"
        raise RequestError(
            ErrorCode.CONTEXT_TOO_LONG,
            f"the prompt has {num_tokens} tokens, but {what} {session_len} (session_len): shorten it, or use fewer or "
            "smaller pictures",
            "messages",
        )


def check_run_length(num_tokens: int, max_prefill_token_num: int) -> None:
    """Raise `RequestError` for a prompt whose tokens see each other, but are too many to be computed in one step."""
    if num_tokens > max_prefill_token_num:
        raise RequestError(
            ErrorCode.CONTEXT_TOO_LONG,
            f"the prompt has {num_tokens} tokens, but a step takes {max_prefill_token_num} (max_prefill_token_num), "
            "and each token of a prompt to this model sees all others: shorten the prompt, use fewer pictures, or "
            "raise max_prefill_token_num",
            "messages",
        )


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
        self._capacity = pool.num_blocks * pool.block_size  # tokens of all blocks
        self._total_jumped_tokens = self._total_draft_tokens = self._total_accepted_tokens = 0

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
        if error := self._check_fits(seq):
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

    def go_back(self, seq_id: int, num_tokens: int) -> None:
        """Compute a running sequence again from token `num_tokens` on: what it computed behind that is void for it. It
        goes back to the beginning of a block where others may read that block. Between steps, when none of its rows is
        in flight."""
        self._live.go_back(self._live.by_id[seq_id], num_tokens)

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

    def _check_fits(self, seq: Sequence) -> RequestError | None:
        """The error of a sequence that is larger than the whole pool."""
        need = self._pool.blocks_for(seq.num_tokens)
        if need <= self._pool.num_blocks:
            return None
        return RequestError(
            ErrorCode.OUT_OF_MEMORY,
            f"{seq.num_tokens} tokens need {need} KV blocks of {self._pool.block_size} tokens, but the cache has "
            f"{self._pool.num_blocks}: shorten the request, or give the cache more memory",
        )

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
        rows: list[Row] = []
        preempted: list[int] = []

        def add_row(seq: Sequence, num_tokens: int, proposed: tuple[int, ...] = ()) -> None:
            rows.append(self._make_row(seq, num_tokens, proposed))

        self._live.readmit(_MAX_READMITTED)
        yielding = None
        if only is None:
            yielding = self._preemption.find_yielding(lacks_blocks=self._admission.lacks_blocks)
        yielded_ids: tuple[int, ...] = ()
        if yielding is not None and not yielding.is_in_flight:
            self._preemption.preempt(yielding)
            yielded_ids = (yielding.seq_id,)
        candidates = [
            (seq, missing)
            for seq in self._live.running
            if seq is not yielding and (only is None or seq.seq_id in only) and (missing := self._count_missing(seq))
        ]
        singles = min(self._count_singles(candidates), self.config.max_prefill_token_num)
        spare = self._find_spare(candidates, singles)
        shares = self._divide(spare, candidates)
        spare, promised = self._plan_running(candidates, singles, spare, shares, add_row, preempted, drafts or {})
        jobs: list[EncodeJob] = []
        for num_rounds in count(1):
            spare, promised = self._admission.plan(add_row, spare, shares, promised, preempted, only)
            more_jobs, admissible = self._live.needs.plan_jobs(
                self._live.count_beginning, self.config.max_prefill_token_num
            )
            jobs += more_jobs
            for seq in admissible:
                self._live.blocked.wake_one(seq)
            is_enough = preempted or only is not None or (rows and num_rounds == _MAX_ROUNDS)
            if is_enough or not self._live.blocked.has_woken:
                break
            self._live.readmit(_MAX_READMITTED)
        deltas = self._live.deltas.take()
        saves, loads = self._pool.host.take_copies()
        copies, state_copies = self._live.take_copies()
        assert rows or not (saves or loads or copies or state_copies), "blocks are taken for rows alone"
        return StepPlan(
            is_fresh=deltas.is_fresh,
            rows=tuple(rows),
            ended_ids=deltas.ended_ids,
            begun=deltas.begun,
            adapter_loads=self._live.adapters.take_loads(),
            added_blocks=deltas.added_blocks,
            saves=saves,
            loads=loads,
            copies=copies,
            state_copies=state_copies,
            encode_jobs=tuple(jobs),
            preempted_ids=(*yielded_ids, *preempted),
            is_streamed=any(row.num_known == 1 and self._live.by_id[row.seq_id].is_streamed for row in rows),
        )

    def _count_singles(self, candidates: list[tuple[Sequence, int]]) -> int:
        """How many sequences have a row of one token in the next step."""
        singles = sum(missing == 1 for _, missing in candidates)
        if (count := self.config.num_micro_batches) == 1:
            return singles
        in_flight = sum(seq.num_pending > 0 for seq in self._live.running)
        return min(singles, -(-(singles + in_flight) // count))

    def _divide(self, spare: int, candidates: list[tuple[Sequence, int]]) -> TokenShares:
        """Divide the prompt tokens of a step among owners: those whose prompts are running, and those next in turn, as
        many as there are places."""
        if len(self._live.owners) < 2:
            return TokenShares()
        wanted = Counter[Hashable]()
        for seq, missing in candidates:
            if missing > 1:
                wanted[seq.owner] += min(missing, spare)
        for owner, num_tokens in self._live.waiting.find_owners(self.config.max_batch_size - len(self._live.running)):
            wanted[owner] += min(num_tokens, spare)
        return TokenShares(divide_tokens(spare, wanted))

    def _plan_running(
        self,
        candidates: list[tuple[Sequence, int]],
        singles: int,
        spare: int,
        shares: TokenShares,
        add_row: Callable[[Sequence, int, tuple[int, ...]], None],
        preempted: list[int],
        drafts: Mapping[int, tuple[int, ...]],
    ) -> tuple[int, int]:
        """Plan the running sequences that lack tokens, `singles` of them one. Returns the tokens left for others, and
        the blocks that the running ones still need for their known tokens."""
        promised, block_size = 0, self._pool.block_size
        for seq, missing in candidates:
            if seq.status is not SequenceStatus.RUNNING:  # preempted for an older one
                continue
            allowed = min(singles, 1) if missing == 1 else min(missing, spare, shares.left(seq.owner))
            wanted = min(allowed, seq.ready_until - seq.num_scheduled)
            if missing > 1:
                wanted = seq.fit_chunk(seq.num_scheduled, wanted)
            if 0 < wanted <= len(seq.block_ids) * block_size - seq.num_scheduled:
                num_tokens = wanted  # most rows of a step: their block has room
            else:
                num_tokens = self._preemption.reserve(seq, wanted, preempted)
            if wanted > 0 and not num_tokens:
                # Younger ones hold the blocks and are in flight: they pause, so that the next plan can preempt them.
                return 0, promised
            if num_tokens:
                proposed = self._fit_drafts(seq, drafts[seq.seq_id], spare) if seq.seq_id in drafts else ()
                add_row(seq, num_tokens, proposed)
                if missing == 1:
                    singles -= 1
                    spare -= len(proposed)
                else:
                    spare -= shares.spend(seq.owner, num_tokens)
            if seq.num_scheduled < seq.num_tokens:
                promised += max(0, self._pool.blocks_for(seq.num_tokens) - len(seq.block_ids))
        return spare, promised

    def _find_spare(self, candidates: list[tuple[Sequence, int]], singles: int) -> int:
        """Most tokens that the next step has beside `singles` rows of one token. `candidates` are the running sequences
        with the tokens that each lacks."""
        going_on = [seq for seq, missing in candidates if missing == 1]
        load = StepLoad(
            num_decode_rows=singles,
            num_decode_context=sum(seq.num_scheduled + 1 for seq in going_on),
            is_streamed=any(seq.is_streamed for seq in going_on),
            is_encoding=self._live.needs.is_missing_any,
            prompts=self._iterate_prompts(candidates),
        )
        spare = self.config.max_prefill_token_num - singles
        limit = self._policy.limit_prompt_tokens(load)
        assert limit is None or limit >= 1, f"{self._policy} allows {limit} prompt tokens"
        return spare if limit is None else min(spare, limit)

    def _iterate_prompts(self, candidates: list[tuple[Sequence, int]]) -> Iterator[WaitingPrompt]:
        """The prompts that a step could compute now: those of running sequences, then those of waiting ones."""
        now_s = self._clock()
        for seq, missing in candidates:
            num_tokens = min(missing, seq.ready_until - seq.num_scheduled)
            if missing > 1 and num_tokens > 0:
                is_new = seq.num_scheduled >= seq.num_prompt_tokens  # tokens that were known with the last commit
                yield WaitingPrompt(seq.num_scheduled, num_tokens, 0.0 if is_new else now_s - seq.added_at_s)
        for seq in self._live.waiting.iterate_turns(MAX_PROMPTS):
            if seq.can_start(0, self.config.max_prefill_token_num):
                yield WaitingPrompt(0, min(seq.num_tokens, seq.ready_until), now_s - seq.added_at_s)

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
            or self.config.num_micro_batches > 1
            or num_expected - seq.num_prompt_tokens >= params.max_new_tokens
            or num_expected >= self.config.session_len
            or num_expected > self._capacity
            or self._live.is_outgrown(seq, seq.num_pending)
        )
        return 0 if is_over else missing

    def _fit_drafts(self, seq: Sequence, proposed: tuple[int, ...], spare: int) -> tuple[int, ...]:
        """Return the proposed tokens that a row with the last known token of `seq` may have: all positions of the
        answer must be computed alike, and nobody is to lose blocks for tokens that may be wrong."""
        if seq.num_pending or not seq.wants_answer or seq.num_tokens - seq.num_scheduled != 1:
            return ()
        if seq.snapshots is not None:  # wrong tokens cannot be taken back from a state
            return ()
        end = min(self.config.session_len, seq.num_prompt_tokens + seq.params.max_new_tokens, self._capacity)
        num_blocks = max(0, self._pool.num_available - len(self._live.running))
        room = (len(seq.block_ids) + num_blocks) * self._pool.block_size - seq.num_tokens
        proposed = proposed[: max(0, min(spare, end - seq.num_tokens - 1, room, MAX_DRAFTS))]
        return () if self._live.is_outgrown(seq, len(proposed)) else proposed

    def _make_row(self, seq: Sequence, num_tokens: int, drafts: tuple[int, ...]) -> Row:
        self._live.keep_state(seq)
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

    def commit_step(self, plan: StepPlan, sampled: Mapping[int, tuple[int, ...]]) -> tuple[SequenceUpdate, ...]:
        """Apply a computed plan. `sampled` has, for each row that samples, the next tokens of its sequence, by id: one,
        and one more for each draft that was accepted. What was computed of the other drafts is void.

        Rows of sequences that ended in the meantime are ignored. Tokens after the one that ends a sequence are thrown
        away. A sequence that has grown into another stretch (see `LengthScaling`) waits to be computed again.
        Returns an update for each sequence that has new tokens or ends.
        """
        updates = []
        by_id, block_size = self._live.by_id, self._pool.block_size
        for seq_id, start, num_tokens, samples, drafts in plan.rows:
            seq = by_id.get(seq_id)
            if seq is None:
                continue
            seq.num_pending -= samples
            stop = start + num_tokens
            assert seq.num_computed == start and seq.num_scheduled >= stop, (seq, start, stop)
            added, end = self._append_tokens(seq, sampled[seq_id]) if samples else ((), None)
            if drafts:
                stop = self._settle_drafts(seq, len(drafts), len(added))
            seq.num_computed = stop
            if start < seq.media_end:
                self._live.needs.settle_computed(seq, stop)
            if stop // block_size != seq.num_registered_blocks:
                self._live.prefix.register(seq)
            if samples:
                updates.append(self._go_on(seq, added, end))
            elif not seq.wants_answer and seq.num_computed == seq.num_tokens:
                self._live.end(seq, "length", None)
                updates.append(SequenceUpdate(seq=seq, finish_reason="length"))
        if self._live.groups.is_awaited:
            self._live.settle_groups(plan.rows)
        return tuple(updates)

    def observe_step(self, plan: StepPlan, seconds: float) -> None:
        """Tell the policy that the device computed a plan in `seconds`, if streamed answers went on in it: the
        predictions are for such steps, and others may be far longer."""
        if plan.is_streamed:
            self._policy.observe(plan.rows, seconds)

    def _settle_drafts(self, seq: Sequence, num_drafts: int, num_added: int) -> int:
        """Count the accepted ones of the drafts of a row, which gave `num_added` tokens, and plan on behind these.
        Returns where the computed tokens end: before the last known one."""
        num_accepted = min(num_drafts, num_added - 1)
        self._total_draft_tokens += num_drafts
        self._total_accepted_tokens += num_accepted
        seq.num_drafted += num_drafts
        seq.num_accepted += num_accepted
        seq.num_drafts = 0
        seq.num_scheduled = seq.num_tokens - 1
        return seq.num_scheduled

    def _append_tokens(self, seq: Sequence, token_ids: tuple[int, ...]) -> tuple[tuple[int, ...], Stop | None]:
        """Add sampled tokens up to the one that ends the sequence. Returns these, and why it ends."""
        num_added = 0
        if seq.num_foretold:
            assert len(token_ids) == seq.num_foretold + 1, (seq, token_ids)
            seq.num_pending -= seq.num_foretold
            self._total_jumped_tokens += seq.num_foretold
            seq.num_foretold = 0
        stop: Stop | None = None
        for token_id in token_ids:
            seq.append(token_id)
            num_added += 1
            stop = check_stop(seq, token_id, self.config.session_len)
            if stop:
                break
        assert num_added, f"no token was sampled for {seq}"
        return token_ids[:num_added], stop

    def _go_on(self, seq: Sequence, token_ids: tuple[int, ...], stop: Stop | None) -> SequenceUpdate:
        """Let a sequence that got `token_ids` go on, or end it."""
        if not stop and seq.num_tokens <= self._capacity:
            if self._live.is_outgrown(seq):
                self._live.restart(seq)
            return SequenceUpdate(seq, token_ids)
        error = None if stop else self._check_fits(seq)
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
            total_jumped_tokens=self._total_jumped_tokens,
            total_draft_tokens=self._total_draft_tokens,
            total_accepted_tokens=self._total_accepted_tokens,
        )
        return EngineStats.merge(counts, self._pool.stats())

    def check_integrity(self) -> None:
        """Assert all invariants of the scheduler, its sequences and its pool."""
        self._live.check_integrity(max_running=self.config.max_batch_size, session_len=self.config.session_len)

"""The sequences that are alive, each in one queue, and how they pass from one to the other. Decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from seesay.llm.plans.step_plan import CopiedBlock, Row, StepPlan
from seesay.llm.scheduling.adapter_slots import AdapterSlots
from seesay.llm.scheduling.arrival_queue import ArrivalQueue, PlaceQueue
from seesay.llm.scheduling.blocked_sequences import BlockedSequences
from seesay.llm.scheduling.embedding_demand import EmbeddingDemand
from seesay.llm.scheduling.plan_deltas import PlanDeltas
from seesay.llm.scheduling.prefix_cache import PrefixCache
from seesay.llm.scheduling.sequence import Sequence, SequenceStatus
from seesay.llm.scheduling.sequence_groups import SequenceGroups
from seesay.llm.scheduling.waiting_queue import WaitingQueue

if TYPE_CHECKING:
    from seesay.llm.memory.resume_points import ResumePoints
    from seesay.llm.plans.traits import LengthScaling
    from seesay.llm.scheduling.pools.block_pool import BlockPool
    from seesay.llm.scheduling.state_slots import StateSlots
    from seesay.values import FinishReason


_ARRIVALS = 1 << 48
"""More sequences than ever arrive: those of one priority are all before those of the next."""
_FRONT = 1 << 96


class Beginning(NamedTuple):
    """The first `num_tokens` tokens of a waiting sequence, which are computed already: the contents of full blocks, at
    these places of the pool, and of a part of the block `tail`. num_stored: tokens whose keys and values are there;
    more than `num_tokens` where no state is kept behind them."""

    num_tokens: int
    places: tuple[int, ...]
    tail: int | None = None
    num_stored: int = 0


class LiveSequences:
    """The state that the parts of a scheduler share.

    by_id: all of them. running, waiting: see `Sequence.status`. blocked: found to wait for an embedding, or for KV that
    another one computes; back in `waiting` when that is there, or will not be.
    states: slots of what layers keep of whole sequences; None where they keep no such thing.
    pool, prefix, groups, needs, adapters: the blocks, prefixes, common beginnings, embeddings and slots of adapters
    that they hold. deltas: what runners must learn of them.
    owners: how many are of each owner. length_scaling: see `SchedulerConfig`.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_encode_ahead_tokens: int,
        length_scaling: LengthScaling | None,
        resume_points: ResumePoints,
        states: StateSlots | None = None,
        num_adapter_slots: int = 0,
    ) -> None:
        self.states = states
        self._num_adapter_slots = num_adapter_slots
        self._resume_points = resume_points
        self.pool = pool
        self.length_scaling = length_scaling
        self.deltas = PlanDeltas()
        self._num_arrivals = 0
        self._max_encode_ahead_tokens = max_encode_ahead_tokens
        self.reset()

    def reset(self) -> None:
        """Know no sequence any more."""
        if self.states is not None:
            self.states.reset()
        self.by_id: dict[int, Sequence] = {}
        self.running = ArrivalQueue()
        self.waiting = WaitingQueue()
        self.blocked = BlockedSequences()
        self.prefix = PrefixCache(self.pool, self.blocked)
        self.groups = SequenceGroups(self.pool, self.blocked)
        self.needs = EmbeddingDemand(self._max_encode_ahead_tokens)
        self.adapters = AdapterSlots(self._num_adapter_slots, self.blocked)
        self.owners: Counter[Hashable] = Counter()
        self._copies: list[CopiedBlock] = []
        self.deltas.renew(())

    def prepare(self, seq: Sequence) -> None:
        """Find the stretch of a new sequence, and hash its prompt. Any thread may call it."""
        if self.length_scaling is not None:
            is_by_prompt = self.length_scaling.is_by_prompt
            seq.stretch = self.length_scaling.find_stretch(seq.asked_position if is_by_prompt else seq.num_positions)
        if self.states is not None:
            seq.snapshots = self.states.places
        self.prefix.prepare(seq)

    def add(self, seq: Sequence, now_s: float) -> None:
        """Queue a new sequence."""
        seq.arrival = self._num_arrivals
        self._num_arrivals += 1
        seq.place = seq.priority * _ARRIVALS + seq.arrival
        seq.added_at_s = now_s
        self.by_id[seq.seq_id] = seq
        self.owners[seq.owner] += 1
        self.groups.add(seq)
        self.waiting.add(seq)
        self.needs.track(seq)

    def find_beginning(self, seq: Sequence) -> Beginning:
        """The longest beginning of a waiting sequence that is computed: in the prefix cache, or by one of its group."""
        cached = self.prefix.find(seq)
        found = Beginning(len(cached) * self.pool.block_size, cached)
        if (
            seq.group_id is not None
            and (fork := self.groups.find(seq, self.deltas.begun_ids))
            and fork.num_tokens > found.num_tokens
        ):
            found = Beginning(fork.num_tokens, fork.block_ids, fork.tail)
        num_tokens = self._resume_points.find_last(seq.block_keys, found.num_tokens)
        if num_tokens == found.num_tokens:
            return found
        assert not num_tokens % self.pool.block_size, "a part of a block is copied to its last token"
        places = found.places[: num_tokens // self.pool.block_size]
        return Beginning(num_tokens, places, num_stored=found.num_tokens)

    def count_beginning(self, seq: Sequence) -> int:
        """How many tokens `find_beginning` finds."""
        return self.find_beginning(seq).num_tokens

    def try_follow(self, seq: Sequence, beginning: Beginning) -> bool:
        """Whether another one is going to compute more of a waiting sequence than `beginning`; it then waits for it."""
        num_blocks = beginning.num_tokens // self.pool.block_size
        cause = self.groups.find_coming(seq, beginning.num_tokens) or self.prefix.find_coming(seq, num_blocks)
        if cause is not None:
            self.block(seq, cause)
        return cause is not None

    def block(self, seq: Sequence, cause: Hashable) -> None:
        """Let a waiting sequence wait for `cause`."""
        self.waiting.discard(seq)
        self.blocked.add(seq, cause)

    def readmit(self, most: int) -> None:
        """Let sequences whose cause has come be considered for admission again, at most so many."""
        for seq in self.blocked.take_woken(most):
            self.waiting.add(seq)

    def admit(self, seq: Sequence, beginning: Beginning) -> None:
        """Make a waiting sequence run from the end of `beginning`, which `find_beginning` found."""
        start, places, tail, num_stored = beginning
        seq.block_ids = self.pool.acquire(places)
        if tail is not None:
            seq.block_ids += self.pool.allocate(1)
            self._copies.append(CopiedBlock(tail, seq.block_ids[-1]))
        if self.states is not None:
            self.states.begin(seq, start)
            seq.snapshots = self.states.places.add(seq.media_end).add(num_stored)
        seq.num_computed = seq.num_scheduled = start
        num_here = next((i for i, place in enumerate(places) if place >= self.pool.num_blocks), len(places))
        seq.num_registered_blocks = num_here
        self.prefix.announce(seq, num_here)
        seq.status = SequenceStatus.RUNNING
        self.needs.settle_computed(seq, start)
        self.waiting.discard(seq)
        self.running.add(seq)
        self.waiting.note_running(seq, 1)
        self.adapters.take(seq)
        self.deltas.begin(seq)

    def bring_forward(self, seq: Sequence) -> None:
        """Give a waiting sequence a place before all that were not brought forward."""
        queues: tuple[WaitingQueue | PlaceQueue, ...] = (self.waiting, *self.needs.queues_of(seq))
        for queue in queues:
            queue.discard(seq)
        seq.place = seq.arrival - _FRONT
        for queue in queues:
            queue.add(seq)

    def restart(self, seq: Sequence) -> None:
        """Let a running sequence wait at its old place, to be computed from its beginning."""
        assert not seq.is_in_flight, seq
        self.running.discard(seq)
        self.waiting.note_running(seq, -1)
        self.deltas.end(seq)
        self.adapters.release(seq)
        self.pool.release(seq.block_ids)
        seq.block_ids = ()
        self._end_state(seq)
        self.prefix.forget(seq)
        self.groups.forget(seq)
        seq.num_computed = seq.num_scheduled = seq.num_registered_blocks = 0
        seq.shares_blocks = True
        if self.length_scaling is not None and self.is_outgrown(seq):
            seq.stretch = self.length_scaling.find_stretch(seq.num_positions)
            seq.block_keys.clear()
        seq.status = SequenceStatus.PREEMPTED
        self.needs.assume_computed(seq, 0)
        self.waiting.add(seq)

    def abandon(self, plans: Iterable[StepPlan]) -> None:
        """See `Scheduler.abandon`."""
        moved: set[int] = set()
        for plan in plans:
            moved.update(copy.block_id for copy in plan.loads)
            moved.update(copy.target for copy in plan.copies)
            self._forget_copies(plan)
        for seq in list(self.running):
            has_lost_state = self._note_lost_state(seq)
            seq.roll_back()
            if has_lost_state or not moved.isdisjoint(seq.block_ids):
                self.restart(seq)
                continue
            num_held = self.pool.blocks_for(seq.num_computed)
            self.pool.release(seq.block_ids[num_held:])
            seq.block_ids = seq.block_ids[:num_held]
        self.deltas.renew(self.running)
        self.adapters.renew()

    def end(self, seq: Sequence, reason: FinishReason, error: Exception | None) -> None:
        """A sequence has ended: release everything it holds."""
        del self.by_id[seq.seq_id]
        self.owners[seq.owner] -= 1
        if not self.owners[seq.owner]:
            del self.owners[seq.owner]
        if seq.status is SequenceStatus.RUNNING:
            self.running.discard(seq)
            self.waiting.note_running(seq, -1)
        self.waiting.discard(seq)
        self.blocked.discard(seq)
        self.prefix.forget(seq)
        self.groups.forget(seq)
        self.needs.drop(seq)
        self.adapters.release(seq)
        self.deltas.end(seq)
        self.pool.release(self.groups.end(seq, is_good=reason != "error"))
        self._end_state(seq)
        seq.block_ids = ()
        seq.status = SequenceStatus.FINISHED
        seq.finish_reason = reason
        seq.error = error

    def forget_prefixes(self) -> None:
        """Empty the prefix cache, on the host too. Sequences that run keep their blocks, which nobody else finds."""
        for seq in self.running:
            self.prefix.forget(seq)
            self.groups.forget(seq)
            seq.shares_blocks = False
        self.groups.drop_kept()
        self.pool.forget(range(self.pool.num_blocks))
        if self.states is not None:
            self.states.forget_all()
        self.pool.host.forget_slots(range(self.pool.host.num_slots))

    def settle_groups(self, rows: Iterable[Row]) -> None:
        """Rows were computed: let those go on that waited for these tokens of one of their group."""
        for row in rows:
            if (seq := self.by_id.get(row.seq_id)) is not None:
                self.groups.settle(seq)

    def take_copies(self) -> tuple[tuple[CopiedBlock, ...], tuple[CopiedBlock, ...]]:
        """The copies of blocks, and of states, since the last call."""
        copies, self._copies = tuple(self._copies), []
        return copies, () if self.states is None else self.states.take_copies()

    def _forget_copies(self, plan: StepPlan) -> None:
        """What the copies of a lost plan were to move is nowhere."""
        self.pool.host.forget_slots([copy.slot for copy in (*plan.saves, *plan.loads)])
        if self.states is not None:
            self.states.forget_copies(plan.state_copies)

    def _note_lost_state(self, seq: Sequence) -> bool:
        """Return whether the state of a sequence is lost with a step that it is in, and note how far that went."""
        if self.states is None or not seq.is_in_flight:
            return False
        seq.num_lost = seq.num_scheduled
        return True

    @property
    def has_room_for_state(self) -> bool:
        """Whether one more sequence has room for what layers keep of it as a whole."""
        return self.states is None or self.states.has_room

    def _end_state(self, seq: Sequence) -> None:
        if self.states is not None:
            self.states.end(seq)

    def keep_state(self, seq: Sequence) -> None:
        """A row of a sequence begins, which will change its state: keep that for others if they may want it. A state
        that wrong tokens have changed becomes what it was before them."""
        place = seq.num_scheduled
        if self.states is not None and seq.spare_slot >= 0:
            self.states.spares.take_back(seq)
        if seq.snapshots is None or not seq.snapshots.has(place, seq.num_tokens):
            return
        if self.states is not None and self.prefix.name_blocks(seq, place):
            self.states.keep(seq, place)

    def spare_state(self, seq: Sequence) -> bool:
        """Keep the state of a sequence before a row with proposed tokens. Returns whether it may have them."""
        return self.states is None or self.states.spares.make(seq)

    def settle_state(self, seq: Sequence, *, is_right: bool) -> bool:
        """A row with proposed tokens was computed; `is_right`: all of them were. Returns whether the state of its
        sequence is that behind its computed tokens; else it is computed from the beginning of that row again."""
        if self.states is None or not is_right:
            return self.states is None
        self.states.spares.drop(seq)
        return True

    def forget_blocks(self, seq: Sequence) -> None:
        """See `Scheduler.forget_blocks`."""
        self.pool.forget(seq.block_ids)
        if self.states is not None:
            self.states.forget(seq.block_keys)

    def is_outgrown(self, seq: Sequence, num_pending: int = 0) -> bool:
        """Whether a sequence with its known tokens, and so many more, is computed with another stretch than it has."""
        scaling = self.length_scaling
        if scaling is None or scaling.is_by_prompt:
            return False
        return scaling.find_stretch(seq.num_positions + num_pending) != seq.stretch

    def check_integrity(self, *, max_running: int, session_len: int) -> None:
        """Assert all invariants of the sequences and of what they hold."""
        self._check_queues(max_running)
        self.pool.check_integrity([seq.block_ids for seq in self.by_id.values()] + self.groups.tables())
        self.needs.check_integrity(self.by_id)
        self.waiting.check_integrity()
        if self.states is not None:
            self.states.check_integrity(self.running)
        self.blocked.check_integrity()
        known = self.groups.check_integrity(self.by_id.values()) | self.prefix.check_integrity(self.running)
        missing = {item.hash for seq in self.blocked for item in seq.items}
        known |= self.adapters.check_integrity(self.running, [*self.waiting, *self.blocked])
        assert set(self.blocked.by_cause) <= known | missing, "nobody will wake these"
        for seq in self.by_id.values():
            seq.check_integrity(block_size=self.pool.block_size, session_len=session_len)

    def _check_queues(self, max_running: int) -> None:
        """Assert that each sequence is in one queue, as its status says."""
        queued = [seq.seq_id for queue in (self.running, self.waiting, self.blocked) for seq in queue]
        assert sorted(queued) == sorted(self.by_id), queued
        assert len(self.running) <= max_running
        assert Counter(seq.owner for seq in self.running) == self.waiting.num_running
        for seq in self.by_id.values():
            assert (seq in self.running) == (seq.status is SequenceStatus.RUNNING), seq

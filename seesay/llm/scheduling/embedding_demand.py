"""Tracks which sequences need which embeddings, and decides when to ask an encoder for them. Holds no embeddings.

Items are asked for ahead of time, in the order in which sequences are served, so that encoders see those of many
requests together, as long as the rows asked for and not used yet stay within a limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from seesay.llm.plans.step_plan import EncodeJob
from seesay.llm.scheduling.arrival_queue import ArrivalQueue, PlaceQueue
from seesay.llm.scheduling.sequence import EmbeddingState, Sequence, SequenceStatus

_MAX_ASKING = 32
"""Waiting sequences for which a plan asks: each costs a look-up."""


class EmbeddingRef(NamedTuple):
    """The embedding of item `item_index` of a sequence; `hash` is the item's."""

    seq_id: int
    item_index: int
    hash: bytes


class EmbeddingDemand:
    """The embedding states of all live sequences' items.

    max_rows: most embedding rows that are asked for or ready, and not used yet; those of an embedding that many
    sequences need count once. What the next chunk needs of a running sequence, or of a waiting one when none at an
    earlier place holds any, is asked for in any case: a low limit slows down but never stops anything.
    """

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.num_rows = 0
        self._running = ArrivalQueue()  # running sequences with an item to ask for
        self._waiting = PlaceQueue()  # waiting sequences with an item to ask for
        self._waiting_for: dict[bytes, dict[tuple[int, int], Sequence]] = {}
        self._num_held: dict[int, int] = {}  # by sequence id, its items that are asked for or ready
        self._num_holders: dict[bytes, int] = {}  # by hash, how many such items there are of it
        self._holders = PlaceQueue()
        self._released: list[EmbeddingRef] = []

    @property
    def is_missing_any(self) -> bool:
        """Whether a sequence needs an embedding that is not there yet, asked for or not."""
        return bool(self._waiting_for or self._running or self._waiting)

    def queues_of(self, seq: Sequence) -> tuple[PlaceQueue, ...]:
        """The queues, sorted by place, that a sequence is in."""
        return tuple(queue for queue in (self._waiting, self._holders) if seq in queue)

    def track(self, seq: Sequence) -> None:
        """Look at the sequence's states and status, which may have changed."""
        is_running, has_absent = seq.status is SequenceStatus.RUNNING, EmbeddingState.ABSENT in seq.item_states
        for queue, is_its_own in ((self._running, is_running), (self._waiting, not is_running)):
            if has_absent and is_its_own:
                queue.add(seq)
            else:
                queue.discard(seq)

    def drop(self, seq: Sequence) -> None:
        """The sequence has ended."""
        self._running.discard(seq)
        self._waiting.discard(seq)
        for index in range(len(seq.items)):
            self._release(seq, index)

    def assume_computed(self, seq: Sequence, num_tokens: int) -> bool:
        """The first `num_tokens` tokens of a waiting sequence can come from the prefix cache now: what lies in them is
        not asked for, what an earlier, larger number covered is needed again. Returns whether that changes anything."""
        before = list(seq.item_states)
        for index, item in enumerate(seq.items):
            if not len(item.slots):
                continue
            is_covered = seq.item_stops[index] <= num_tokens
            if is_covered and seq.item_states[index] is EmbeddingState.ABSENT:
                seq.item_states[index] = EmbeddingState.DONE
            elif not is_covered and seq.item_states[index] is EmbeddingState.DONE:
                seq.item_states[index] = EmbeddingState.ABSENT
        self.track(seq)
        seq.update_ready_until(num_tokens)
        return before != seq.item_states

    def settle_computed(self, seq: Sequence, num_tokens: int) -> None:
        """The first `num_tokens` tokens are computed: nothing in them is needed any more."""
        for index, item in enumerate(seq.items):
            if len(item.slots) and seq.item_stops[index] <= num_tokens:
                self._release(seq, index)
                seq.item_states[index] = EmbeddingState.DONE
        self.track(seq)

    def mark_ready(self, item_hash: bytes) -> None:
        """The embedding exists."""
        for (_, index), seq in self._waiting_for.pop(item_hash, {}).items():
            seq.item_states[index] = EmbeddingState.READY
            seq.update_ready_until(seq.num_scheduled)

    def find_missing(self, seq: Sequence) -> bytes:
        """Return the hash of the first embedding that a sequence lacks."""
        states = (EmbeddingState.ABSENT, EmbeddingState.REQUESTED)
        return next(item.hash for item, state in zip(seq.items, seq.item_states, strict=True) if state in states)

    def find_waiting(self, item_hash: bytes) -> list[Sequence]:
        """The sequences that wait for this embedding."""
        return list(dict.fromkeys(self._waiting_for.get(item_hash, {}).values()))

    def take_released(self) -> tuple[EmbeddingRef, ...]:
        """The embeddings asked for that are not needed any more, each once."""
        released, self._released = tuple(self._released), []
        return released

    def plan_jobs(
        self, count_cached: Callable[[Sequence], int], max_chunk: int
    ) -> tuple[list[EncodeJob], list[Sequence]]:
        """Ask for items, up to the limit: those of running sequences, the oldest first, then of waiting ones by place.

        `count_cached` says how many tokens of a waiting sequence the prefix cache has; `max_chunk` tokens are computed
        in one step at most. Returns the jobs, and those of the sequences looked at whose first chunk waits for nothing,
        or for something else, as the prefix cache is now. Looks at `_MAX_ASKING` waiting ones: each asks for something,
        so that another plan follows.
        """
        jobs: list[EncodeJob] = []
        admissible: list[Sequence] = []
        for seq in list(self._running):
            self._request_items(seq, seq.num_scheduled + max_chunk, jobs)
        for _ in range(min(len(self._waiting), _MAX_ASKING)):
            seq = self._waiting[0]
            first = seq.item_states.index(EmbeddingState.ABSENT)
            if not self._has_room(seq, first) and not self._may_exceed(seq):
                break
            start = count_cached(seq)
            if self.assume_computed(seq, start) or seq.can_start(start, max_chunk):
                admissible.append(seq)
            if not self._request_items(seq, start + max_chunk, jobs):
                break
        return jobs, admissible

    def _request_items(self, seq: Sequence, chunk_end: int, jobs: list[EncodeJob]) -> bool:
        """Ask for the absent items in order, as far as the limit allows. Returns whether that was all of them."""
        for index, item in enumerate(seq.items):
            if seq.item_states[index] is not EmbeddingState.ABSENT:
                continue
            is_due = item.slots[0] < chunk_end
            if not self._has_room(seq, index) and not (is_due and self._may_exceed(seq)):
                return False
            self._request(seq, index)
            jobs.append(EncodeJob(seq_id=seq.seq_id, item_index=index, hash=item.hash))
        self.track(seq)
        return True

    def _has_room(self, seq: Sequence, index: int) -> bool:
        item = seq.items[index]
        return item.hash in self._num_holders or self.num_rows + item.num_rows <= self.max_rows

    def _may_exceed(self, seq: Sequence) -> bool:
        is_running = seq.status is SequenceStatus.RUNNING
        return is_running or not self._holders or self._holders[0].place >= seq.place

    def _request(self, seq: Sequence, index: int) -> None:
        item = seq.items[index]
        seq.item_states[index] = EmbeddingState.REQUESTED
        self._waiting_for.setdefault(item.hash, {})[seq.seq_id, index] = seq
        if item.hash not in self._num_holders:
            self.num_rows += item.num_rows
        self._num_holders[item.hash] = self._num_holders.get(item.hash, 0) + 1
        self._num_held[seq.seq_id] = self._num_held.get(seq.seq_id, 0) + 1
        self._holders.add(seq)

    def _release(self, seq: Sequence, index: int) -> None:
        """Give back an item that was asked for; others are left as they are."""
        state, item = seq.item_states[index], seq.items[index]
        if state not in (EmbeddingState.REQUESTED, EmbeddingState.READY):
            return
        if state is EmbeddingState.REQUESTED:
            waiting = self._waiting_for[item.hash]
            del waiting[seq.seq_id, index]
            if not waiting:
                del self._waiting_for[item.hash]
        seq.item_states[index] = EmbeddingState.DONE
        self._num_holders[item.hash] -= 1
        if not self._num_holders[item.hash]:
            del self._num_holders[item.hash]
            self.num_rows -= item.num_rows
        self._num_held[seq.seq_id] -= 1
        if not self._num_held[seq.seq_id]:
            del self._num_held[seq.seq_id]
            self._holders.discard(seq)
        self._released.append(EmbeddingRef(seq.seq_id, index, item.hash))

    def check_integrity(self, sequences: dict[int, Sequence]) -> None:
        """Assert all invariants over the live sequences."""
        lacking = [seq for seq in sequences.values() if EmbeddingState.ABSENT in seq.item_states]
        for queue, is_running in ((self._running, True), (self._waiting, False)):
            assert set(queue) == {seq for seq in lacking if (seq.status is SequenceStatus.RUNNING) == is_running}
        assert {seq.seq_id for seq in self._holders} == set(self._num_held)
        assert all(self._waiting_for.values())
        self._check_items(sequences)

    def _check_items(self, sequences: dict[int, Sequence]) -> None:
        """Assert what is known of the embeddings that sequences have asked for."""
        requested, held, num_rows = set(), list[bytes](), dict[bytes, int]()
        for seq in sequences.values():
            for index, (item, state) in enumerate(zip(seq.items, seq.item_states, strict=True)):
                if state is EmbeddingState.REQUESTED:
                    requested.add((item.hash, seq.seq_id, index))
                if state in (EmbeddingState.REQUESTED, EmbeddingState.READY):
                    held.append(item.hash)
                    num_rows[item.hash] = item.num_rows
        assert requested == {(h, *ref) for h, waiting in self._waiting_for.items() for ref in waiting}
        assert Counter(held) == self._num_holders and sum(num_rows.values()) == self.num_rows

"""Slots for what layers keep of a sequence as a whole, and snapshots of it behind blocks. Knows numbers, not memory.

A running sequence has a slot, which each of its rows changes. Where a row begins at the end of a block, and others may
want to go on there, the slot is copied first: to one that nobody writes to, and that is found by the key of that block
until its place is needed; then it moves to the host, where there are slots. So the states of sequences and their
snapshots share one pool, whose rules are those of KV blocks; a sequence begins with a copy of the last snapshot behind
its cached blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Values
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.pools.copied_slots import CopiedSlots

if TYPE_CHECKING:
    from seesay.llm.plans.block_key import BlockKey
    from seesay.llm.plans.step_plan import CopiedBlock
    from seesay.llm.scheduling.sequence import Sequence


@dataclass(frozen=True, slots=True)
class SnapshotPlaces:
    """Where states are kept: behind every `spacing` tokens, a multiple of `block_size`, behind the last full block of
    what is known, and behind as many tokens as each of `ends` says, multiples of `block_size`, too. is_empty: nowhere,
    as nobody could find them."""

    block_size: int
    spacing: int
    ends: tuple[int, ...] = ()
    is_empty: bool = False

    def add(self, num_tokens: int) -> SnapshotPlaces:
        """Return these places and one more, behind the last full block of `num_tokens` tokens."""
        end = num_tokens // self.block_size * self.block_size
        return self if not end % self.spacing or end in self.ends else replace(self, ends=(*self.ends, end))

    def fit(self, start: int, num_tokens: int, num_known: int) -> int:
        """Return how many tokens from `start` on a row may have instead of `num_tokens`: it ends at the next place."""
        if self.is_empty:
            return num_tokens
        last = (num_known - 1) // self.block_size * self.block_size
        next_one = (start // self.spacing + 1) * self.spacing
        stop = min(place for place in (next_one, last, *self.ends) if place > start)
        return min(num_tokens, stop - start)

    def has(self, place: int, num_known: int) -> bool:
        """Return whether the state behind `place` tokens is kept."""
        if self.is_empty or not 0 < place <= num_known:
            return False
        is_at_end = not place % self.block_size and num_known - place <= self.block_size
        return is_at_end or not place % self.spacing or place in self.ends


class SpareSlots:
    """Copies of states from before rows with proposed tokens, one for each sequence that has such a row."""

    def __init__(self, pool: BlockPool, slots: CopiedSlots) -> None:
        self._pool, self._slots = pool, slots

    def make(self, seq: Sequence) -> bool:
        """Copy the state of `seq` before a row with proposed tokens, if there is room. Returns whether there is."""
        if not self._pool.can_allocate(1):
            return False
        seq.spare_slot = self._slots.take()
        self._slots.copy(seq.state_slot, seq.spare_slot)
        return True

    def take_back(self, seq: Sequence) -> None:
        """Let the state of `seq` be the one before the proposed tokens of its last row."""
        self._slots.copy(seq.spare_slot, seq.state_slot)
        self.drop(seq)

    def drop(self, seq: Sequence) -> None:
        """Keep no state before proposed tokens."""
        if seq.spare_slot >= 0:
            self._pool.release((seq.spare_slot,))
            seq.spare_slot = -1


class StateSlots:
    """`num_slots` slots, and `num_host_slots` for snapshots on the host; `places` says where snapshots are taken. They
    are the resume points of the layers (`ResumePoints`). pool: running sequences use some of its blocks, and snapshots
    are cached in others. spares: states that a step with proposed tokens may go back to."""

    def __init__(
        self, num_slots: int, places: SnapshotPlaces, *, enable_prefix_caching: bool = True, num_host_slots: int = 0
    ) -> None:
        self.pool = BlockPool(num_slots, 1, enable_prefix_caching, num_host_slots)
        self._slots = CopiedSlots(self.pool)
        self.spares = SpareSlots(self.pool, self._slots)
        self.places = replace(places, is_empty=not enable_prefix_caching)
        self.total_snapshots = 0

    def reset(self) -> None:
        """Let all slots be free."""
        self._slots.reset()

    @property
    def has_room(self) -> bool:
        """Whether one more sequence can begin. It may take the slot of a snapshot."""
        return self.pool.can_allocate(1)

    def find_last(self, keys: Values[BlockKey], num_tokens: int) -> int:
        """See `ResumePoints`."""
        most = min(len(keys), num_tokens // self.places.block_size)
        found = (number for number in range(most, 0, -1) if self.pool.find((keys[number - 1],)))
        return next(found, 0) * self.places.block_size

    def begin(self, seq: Sequence, num_tokens: int) -> None:
        """Give `seq` a slot, with the state behind its first `num_tokens` tokens, of which there is a snapshot."""
        assert seq.state_slot < 0, seq
        if not num_tokens:
            seq.state_slot = self._slots.take()
            return
        key = seq.block_keys[num_tokens // self.places.block_size - 1]
        places = self.pool.find((key,))
        held = self._slots.acquire(places)
        if held != places:  # it comes from the host: this is a copy
            [seq.state_slot] = held
            return
        if not self.has_room:  # the snapshot is the only slot that is left: it becomes the state
            self.pool.forget(held)
            [seq.state_slot] = held
            return
        seq.state_slot = self._slots.take()
        self._slots.copy(held[0], seq.state_slot)
        self.pool.release(held)

    def end(self, seq: Sequence) -> None:
        """Take the slot of a sequence that runs no more."""
        if seq.state_slot >= 0:
            self.pool.release((seq.state_slot,))
            seq.state_slot, seq.last_snapshot = -1, None
            self.spares.drop(seq)

    def keep(self, seq: Sequence, place: int) -> None:
        """Keep the state of `seq`, which is behind `place` tokens, for others, as far as there is room. `block_keys`
        has the keys of its blocks up to there. The one before in its answer is kept no more."""
        key = seq.block_keys[place // self.places.block_size - 1]
        if found := self.pool.find((key,)):
            if found[0] < self.pool.num_blocks:
                self.pool.release(self.pool.acquire(found))  # used once more
            return
        if seq.last_snapshot is not None:
            self.forget((seq.last_snapshot,))
        if not self.has_room:
            return
        slot = self._slots.take()
        self.pool.register(slot, key)
        self._slots.copy(seq.state_slot, slot)
        self.pool.release((slot,))
        self.total_snapshots += 1
        is_between = place > seq.num_prompt_tokens and place % self.places.spacing
        seq.last_snapshot = key if is_between else None

    def forget(self, keys: Iterable[BlockKey]) -> None:
        """Let nobody find the snapshots behind these blocks any more."""
        for key in keys:
            self._slots.forget(self.pool.find((key,)))

    def forget_copies(self, copies: Iterable[CopiedBlock]) -> None:
        """The copies of a plan that is lost were not made, or it is not known whether they were: what was to be there
        is nowhere."""
        self._slots.forget(self._slots.place_of(copy.target) for copy in copies)

    def forget_all(self) -> None:
        """Let nobody find any snapshot any more."""
        self._slots.forget(range(self.pool.num_blocks + self.pool.host.num_slots))

    def take_copies(self) -> tuple[CopiedBlock, ...]:
        """The copies since the last call, to be made one after another."""
        return self._slots.take_copies()

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Assert all invariants. `sequences`: those that run."""
        held = [(seq.state_slot, *[slot for slot in (seq.spare_slot,) if slot >= 0]) for seq in sequences]
        self.pool.check_integrity(held)

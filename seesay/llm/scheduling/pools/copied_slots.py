"""Slots between which a step copies contents, one after another, in the order in which that is decided here. Knows
numbers, not memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from seesay.llm.plans.step_plan import CopiedBlock
from seesay.llm.scheduling.pools.block_pool import BlockPool


class CopiedSlots:
    """The blocks of `pool`, which are slots of the device and of the host."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._copies: list[CopiedBlock] = []

    def reset(self) -> None:
        """Let all slots be free."""
        self._pool.reset()
        self._copies.clear()

    def take(self) -> int:
        """Take a slot for new content. What it had moves to the host, before anything is copied to it."""
        [slot] = self._pool.allocate(1)
        self._note_moves()
        return slot

    def acquire(self, places: Sequence[int]) -> tuple[int, ...]:
        """See `BlockPool.acquire`."""
        held = self._pool.acquire(places)
        self._note_moves()
        return held

    def copy(self, source: int, target: int) -> None:
        """Copy a slot of the device to another one."""
        self._copies.append(CopiedBlock(source, target))

    def take_copies(self) -> tuple[CopiedBlock, ...]:
        """Return the copies since the last call."""
        copies, self._copies = tuple(self._copies), []
        return copies

    def place_of(self, slot: int) -> int:
        """Return the place of the pool that is a slot of a copy."""
        return slot if slot >= 0 else self._pool.num_blocks - 1 - slot

    def forget(self, places: Iterable[int]) -> None:
        """Let nobody find the contents of these places of the pool any more."""
        for place in places:
            if place < self._pool.num_blocks:
                self._pool.forget((place,))
            else:
                self._pool.host.forget_slots((place - self._pool.num_blocks,))

    def _note_moves(self) -> None:
        """Queue the copies to and from the host that the pool has planned."""
        saves, loads = self._pool.host.take_copies()
        self._copies += [CopiedBlock(save.block_id, -1 - save.slot) for save in saves]
        self._copies += [CopiedBlock(-1 - load.slot, load.block_id) for load in loads]

"""Decides which evicted KV blocks stay in host memory, and lists the copies that the next step begins with.
Knows slots, blocks and keys, not memory.

A step copies the blocks to save first, then those to load, then it computes. So a block may be given to others as soon
as it is planned to be saved, and a slot may be read from as soon as it is planned to be written; a slot that is planned
to be read from keeps its content until the step has been taken.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from seesay.llm.plans.step_plan import BlockCopy

if TYPE_CHECKING:
    from seesay.llm.plans.block_key import BlockKey


class HostSlots:
    """`num_slots` slots of one block each. Contents leave when a slot is needed, least recently used first."""

    def __init__(self, num_slots: int) -> None:
        assert num_slots >= 0, num_slots
        self.num_slots = num_slots
        self.total_loads = 0
        self._keys: list[BlockKey | None] = [None] * num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._by_hash: OrderedDict[bytes, int] = OrderedDict()  # the least recently used first
        self._saves: dict[int, int] = {}  # slot → block
        self._loads: dict[int, int] = {}  # block → slot
        self._held: set[int] = set()  # slots that are planned to be read from

    @property
    def num_used(self) -> int:
        return len(self._by_hash)

    def find(self, key: BlockKey) -> int | None:
        """The slot that holds the content of `key`, or will when the planned copies are made."""
        slot = self._by_hash.get(key.hash)
        return slot if slot is not None and self.key_of(slot).content == key.content else None

    def key_of(self, slot: int) -> BlockKey:
        """The content of a used slot."""
        key = self._keys[slot]
        assert key is not None, slot
        return key

    def save(self, block_id: int, key: BlockKey) -> None:
        """Plan to keep the content of a block that others are going to write to, unless a slot has it already or none
        may be used."""
        if key.hash in self._by_hash:
            self._by_hash.move_to_end(key.hash)
            return
        slot = self._try_take()
        if slot is not None:
            self._keys[slot] = key
            self._by_hash[key.hash] = slot
            self._saves[slot] = block_id

    def _try_take(self) -> int | None:
        if self._free:
            return self._free.pop()
        oldest = next(iter(self._by_hash), None)
        if oldest is None or self._by_hash[oldest] in self._held:
            return None
        return self._by_hash.pop(oldest)

    def hold(self, slots: Sequence[int]) -> None:
        """Let the contents of these slots, given in the order of a block table, stay until they are loaded. The last
        ones of a table are the first to leave again: they are useless without those before them."""
        for slot in reversed(slots):
            self._by_hash.move_to_end(self.key_of(slot).hash)
        self._held.update(slots)

    def load(self, slot: int, block_id: int) -> None:
        """Plan to copy a held slot's content into a block."""
        assert slot in self._held, slot
        self._loads[block_id] = slot
        self.total_loads += 1

    def forget(self, key: BlockKey) -> None:
        """Forget all contents. Not while copies are planned."""
        assert not (self._saves or self._loads or self._held), "copies are planned"
        slot = self._by_hash.pop(key.hash, None)
        if slot is not None:
            self._keys[slot] = None
            self._free.append(slot)

    def forget_slots(self, slots: Iterable[int]) -> None:
        """Forget the contents of these slots."""
        for slot in slots:
            if (key := self._keys[slot]) is not None:
                self.forget(key)

    def take_copies(self) -> tuple[tuple[BlockCopy, ...], tuple[BlockCopy, ...]]:
        """The copies planned since the last call: what a step saves, and what it then loads."""
        saves = tuple(BlockCopy(block_id, slot) for slot, block_id in self._saves.items())
        loads = tuple(BlockCopy(block_id, slot) for block_id, slot in self._loads.items())
        self._saves, self._loads, self._held = {}, {}, set()
        return saves, loads

    def check_integrity(self) -> None:
        """Assert all invariants."""
        free, used = set(self._free), set(self._by_hash.values())
        assert len(free) == len(self._free) and len(used) == len(self._by_hash), "a slot is there twice"
        assert not free & used and free | used == set(range(self.num_slots))
        assert {self.key_of(slot).hash: slot for slot in used} == self._by_hash
        assert self._held <= used and set(self._saves) <= used and set(self._loads.values()) <= self._held

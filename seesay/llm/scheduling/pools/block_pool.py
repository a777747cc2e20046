"""The KV blocks of one engine: who may use which, and which contents are still there. Knows block numbers, not memory.

Each block is in one of three states: *used* (its reference count says by how many sequences), *cached* (by nobody, but
its content is known and can be found again) or *free*. Cached blocks are taken for new content when no free one is
left, least recently used first; where there are host slots, their content is saved there and can still be found.
Every operation costs O(1) per block.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from seesay.llm.scheduling.pools.host_slots import HostSlots
from seesay.values import EngineStats

if TYPE_CHECKING:
    from seesay.llm.plans.block_key import BlockKey


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens, `max_tokens` in all. Without prefix caching no content is
    remembered.

    A *place* is where a content is found: a block, or, from `num_blocks` on, a slot of the host.
    """

    def __init__(
        self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True, num_host_slots: int = 0
    ) -> None:
        assert num_blocks >= 1 and block_size >= 1
        self.num_blocks = num_blocks
        self.max_tokens = num_blocks * block_size
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._num_host_slots = num_host_slots
        self.reset()

    def reset(self) -> None:
        """Let all blocks and slots be free, and no content be known."""
        num_blocks = self.num_blocks
        self._ref_counts = [0] * num_blocks
        self._keys: list[BlockKey | None] = [None] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: low numbers are used first
        self._cached: OrderedDict[int, None] = OrderedDict()  # the least recently used first
        self._by_hash: dict[bytes, int] = {}
        self.host = HostSlots(self._num_host_slots)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` could give: free and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    def stats(self) -> EngineStats:
        """Return the counts of the blocks, and of those in host memory."""
        return EngineStats(
            num_kv_blocks=self.num_blocks,
            num_used_kv_blocks=self.num_used,
            num_cached_kv_blocks=self.num_cached,
            num_host_kv_blocks=self.host.num_slots,
            num_used_host_kv_blocks=self.host.num_used,
            total_host_kv_loads=self.host.total_loads,
        )

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def can_allocate(self, num_blocks: int) -> bool:
        return num_blocks <= self.num_available

    def allocate(self, num_blocks: int) -> tuple[int, ...]:
        """Take blocks for new content; what cached ones had goes to the host. The caller holds a reference to each."""
        assert self.can_allocate(num_blocks), f"{num_blocks} blocks asked for, {self.num_available} available"
        block_ids = tuple(self._take() for _ in range(num_blocks))
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
        return block_ids

    def _take(self) -> int:
        if self._free:
            return self._free.pop()
        block_id, _ = self._cached.popitem(last=False)
        key = self._keys[block_id]
        assert key is not None
        del self._by_hash[key.hash]
        self._keys[block_id] = None
        self.host.save(block_id, key)
        return block_id

    def find(self, keys: Iterable[BlockKey]) -> tuple[int, ...]:
        """Places that hold the contents of the longest findable beginning of `keys`. Takes no reference."""
        found = []
        for key in keys:
            place = self._find(key)
            if place is None:
                break
            found.append(place)
        return tuple(found)

    def _find(self, key: BlockKey) -> int | None:
        block_id = self._by_hash.get(key.hash)
        if block_id is None:
            slot = self.host.find(key)
            return None if slot is None else self.num_blocks + slot
        stored = self._keys[block_id]
        assert stored is not None
        return block_id if stored.content == key.content else None

    def count_cached(self, places: Iterable[int]) -> int:
        """How many of the available blocks `acquire` would take for these places."""
        return sum(place >= self.num_blocks or self._ref_counts[place] == 0 for place in places)

    def acquire(self, places: Sequence[int]) -> tuple[int, ...]:
        """Take one more reference to each of these places, which `find` gave. Returns their blocks: what is on the host
        gets blocks of its own, which the planned copies fill; `register` then lets others find them."""
        slots = [place - self.num_blocks for place in places if place >= self.num_blocks]
        self.host.hold(slots)
        for place in places:
            if place < self.num_blocks:
                if self._ref_counts[place] == 0:
                    del self._cached[place]
                self._ref_counts[place] += 1
        loaded = dict(zip(slots, self.allocate(len(slots))))
        for slot, block_id in loaded.items():
            self.host.load(slot, block_id)
        return tuple(place if place < self.num_blocks else loaded[place - self.num_blocks] for place in places)

    def register(self, block_id: int, key: BlockKey) -> None:
        """Remember that a used block's content, now computed or copied, is that of `key`. Where another block has it
        already, this one stays anonymous."""
        known = self._keys[block_id]
        assert self._ref_counts[block_id] > 0 and (known is None or known.hash == key.hash), block_id
        if known is None and self.enable_prefix_caching and key.hash not in self._by_hash:
            self._keys[block_id] = key
            self._by_hash[key.hash] = block_id

    def forget(self, block_ids: Iterable[int]) -> None:
        """Let nobody find the contents of these blocks any more, neither here nor on the host. Those who hold one keep
        it. Not while copies are planned."""
        for block_id in block_ids:
            key = self._keys[block_id]
            if key is None:
                continue
            self.host.forget(key)
            del self._by_hash[key.hash]
            self._keys[block_id] = None
            if block_id in self._cached:
                del self._cached[block_id]
                self._free.append(block_id)

    # Ownership: a sequence holds one reference to every block in its table, taken by `allocate` or `acquire`, and gives
    # each back here exactly once: when it ends or is preempted. A block with no reference left is never written again
    # before `allocate` hands it out, so a registered one keeps its content and stays findable. The last blocks of a
    # table are released first and so evicted first: a block outlives those that continue it, which are useless alone.
    def release(self, block_ids: Sequence[int]) -> None:
        """Give back one reference to each block of a sequence's table, given in the table's order."""
        for block_id in reversed(block_ids):
            count = self._ref_counts[block_id] - 1
            assert count >= 0, f"block {block_id} was released once too often"
            self._ref_counts[block_id] = count
            if count:
                continue
            if self._keys[block_id] is None:
                self._free.append(block_id)
            else:
                self._cached[block_id] = None

    def check_integrity(self, tables: Iterable[Sequence[int]] | None = None) -> None:
        """Assert all invariants; with `tables`, the block tables of all holders, also that each reference is theirs."""
        held = Counter({block_id: count for block_id, count in enumerate(self._ref_counts) if count})
        used = set(held)
        free, cached = set(self._free), set(self._cached)
        assert min(self._ref_counts) >= 0
        assert len(free) == len(self._free), "a block is free twice"
        assert len(used) + len(free) + len(cached) == self.num_blocks
        assert used | free | cached == set(range(self.num_blocks))
        assert tables is None or held == Counter(chain.from_iterable(tables)), held
        self._check_keys(free, cached)
        self.host.check_integrity()

    def _check_keys(self, free: set[int], cached: set[int]) -> None:
        """Assert that contents are found where they are, and those of free blocks nowhere."""
        named = {key.hash: block_id for block_id, key in enumerate(self._keys) if key is not None}
        assert named == self._by_hash
        assert free.isdisjoint(named.values()) and cached.issubset(named.values())

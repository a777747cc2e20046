"""The KV blocks with which sequences begin: those whose content is there, and those that another sequence is going to
compute. Knows the keys of sequences' blocks; decides nothing.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Hashable
from itertools import islice
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from seesay.llm.scheduling.prefix import PromptKeys, extend_block_keys, hash_prompt

if TYPE_CHECKING:
    from seesay.llm.scheduling.arrival_queue import ArrivalQueue
    from seesay.llm.scheduling.blocked_sequences import BlockedSequences
    from seesay.llm.scheduling.pools.block_pool import BlockPool
    from seesay.llm.scheduling.sequence import Sequence


class PrefixCache:
    """The contents of `pool`, by the tokens and pictures of sequences. Those in `blocked` that wait for a block are
    woken when it is computed, or will not be."""

    def __init__(self, pool: BlockPool, blocked: BlockedSequences) -> None:
        self._pool = pool
        self._blocked = blocked
        self._coming: dict[bytes, Sequence] = {}  # hash of a block that is being computed → who computes it
        self._prompts: WeakValueDictionary[bytes, PromptKeys] = WeakValueDictionary()  # of live sequences

    def prepare(self, seq: Sequence) -> None:
        """Make the keys of a new sequence's prompt, or take those of an equal one. Any thread may call it."""
        if not self._pool.enable_prefix_caching or seq.num_tokens < self._pool.block_size:
            return
        whole = self._salt_of(seq) + hash_prompt(seq.token_ids, seq.items)
        prompt = self._prompts.get(whole)
        if prompt is None:
            self._extend_keys(seq, seq.num_tokens // self._pool.block_size)
            prompt = self._prompts[whole] = PromptKeys(tuple(seq.block_keys))
        seq.prompt_keys = prompt
        seq.block_keys = list(prompt.keys)

    def find(self, seq: Sequence) -> tuple[int, ...]:
        """The places of the pool where this sequence begins. At least one token is left to compute: the one whose
        output gives the next token. It ends before a block that another one is loading from the host: see
        `find_coming`."""
        if not self._pool.enable_prefix_caching or seq.params.needs_prompt_outputs:
            return ()
        num_blocks = (seq.num_tokens - 1) // self._pool.block_size
        self._extend_keys(seq, num_blocks)
        places = self._pool.find(islice(seq.block_keys, num_blocks))
        if self._coming:
            for index, place in enumerate(places):
                if place >= self._pool.num_blocks and seq.block_keys[index].hash in self._coming:
                    return places[:index]
        return places

    def find_coming(self, seq: Sequence, num_found: int) -> bytes | None:
        """Whether another computes the block after the `num_found` blocks that `find` found for `seq`. Returns the hash
        of the last block that both have in common: what `seq` should wait for."""
        most = (seq.num_tokens - 1) // self._pool.block_size
        if not self._coming or seq.params.needs_prompt_outputs or num_found >= most:
            return None
        leader = self._coming.get(seq.block_keys[num_found].hash)
        if leader is None:
            return None
        keys, others = seq.block_keys, leader.block_keys
        stop = min(most, len(others))
        differs = range(num_found + 1, stop)  # a key chains all before it: behind the first other one, all differ
        stop = num_found + 1 + bisect_left(differs, True, key=lambda index: keys[index].hash != others[index].hash)
        coming = (keys[index].hash for index in range(stop - 1, num_found - 1, -1))
        return next(key for key in coming if self._coming.get(key) is leader)

    def announce(self, seq: Sequence, num_found: int) -> None:
        """A sequence is going to compute its known tokens behind its first `num_found` blocks."""
        if self._pool.enable_prefix_caching:
            num_full = seq.num_tokens // self._pool.block_size
            self._extend_keys(seq, num_full)
            for key in seq.block_keys[num_found:num_full]:
                self._coming.setdefault(key.hash, seq)

    def register(self, seq: Sequence) -> None:
        """Publish the blocks of a sequence that are full and computed."""
        num_full = seq.num_computed // self._pool.block_size
        if not (self._pool.enable_prefix_caching and seq.shares_blocks) or num_full == seq.num_registered_blocks:
            return
        self._extend_keys(seq, num_full)
        first, seq.num_registered_blocks = seq.num_registered_blocks, num_full
        for index in range(first, num_full):
            self._pool.register(seq.block_ids[index], seq.block_keys[index])
        self._settle(seq, first, num_full)

    def name_blocks(self, seq: Sequence, num_tokens: int) -> bool:
        """Make the keys of the blocks of the first `num_tokens` tokens of a sequence, which are full. Returns whether
        others may find them."""
        if not (self._pool.enable_prefix_caching and seq.shares_blocks):
            return False
        self._extend_keys(seq, num_tokens // self._pool.block_size)
        return True

    def forget(self, seq: Sequence) -> None:
        """Withdraw announced blocks that were not computed."""
        self._settle(seq, seq.num_registered_blocks, len(seq.block_keys))

    def _settle(self, seq: Sequence, first: int, stop: int) -> None:
        """Wake the sequences that waited for blocks `first` … `stop` - 1, which are computed or will never be."""
        for key in seq.block_keys[first:stop]:
            if self._coming.get(key.hash) is seq:
                del self._coming[key.hash]
                self._blocked.wake(key.hash)

    def _salt_of(self, seq: Sequence) -> bytes:
        return struct.pack("<dq", seq.stretch, seq.adapter_id) + seq.cache_salt + seq.prompt_hash

    def _extend_keys(self, seq: Sequence, num_blocks: int) -> None:
        extend_block_keys(
            seq.block_keys,
            num_blocks,
            token_ids=seq.token_ids,
            items=seq.items,
            salt=self._salt_of(seq),
            block_size=self._pool.block_size,
        )

    def check_integrity(self, running: ArrivalQueue) -> set[Hashable]:
        """Assert that who computes is running. Returns the hashes of the blocks that are coming."""
        assert all(seq in running for seq in self._coming.values())
        return set(self._coming)

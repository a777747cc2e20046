"""The KV blocks with which sequences begin: those whose content is there, and those that another sequence is going to
compute. Knows the keys of sequences' blocks; decides nothing.

Looking up a waiting prompt makes keys only until one is not found, and a prompt that follows an equal one copies its
keys: many long prompts may wait, and a step must not hash them all.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from seesay.llm.scheduling.prefix import BlockKey, extend_block_keys

if TYPE_CHECKING:
    from seesay.llm.scheduling.arrival_queue import ArrivalQueue
    from seesay.llm.scheduling.block_pool import BlockPool
    from seesay.llm.scheduling.sequence import Sequence


_KEYS_AT_ONCE = 8
"""Keys made together while a prompt is looked up: a prompt of which nothing is there costs no more than these."""


class PrefixCache:
    """The contents of `pool`, by the tokens and pictures of sequences."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._coming: dict[bytes, Sequence] = {}  # hash of a block that is being computed → who computes it
        self._awaited: dict[bytes, list[Sequence]] = {}  # such a hash → who waits for it

    def find(self, seq: Sequence) -> tuple[int, ...]:
        """The places of the pool where this sequence begins. At least one token is left to compute: the one whose
        output gives the next token. It ends before a block that another one is loading from the host: see
        `try_follow`."""
        if not self._pool.enable_prefix_caching or seq.params.needs_prompt_outputs:
            return ()
        num_blocks = (seq.num_tokens - 1) // self._pool.block_size
        places = self._pool.find(self._iterate_keys(seq, num_blocks))
        if self._coming:
            for index, place in enumerate(places):
                if place >= self._pool.num_blocks and seq.block_keys[index].hash in self._coming:
                    return places[:index]
        return places

    def try_follow(self, seq: Sequence, num_found: int) -> bool:
        """Whether another computes the block after the `num_found` blocks that `find` found for `seq`. It then waits
        for the last block that both have in common, as far as that is known without hashing: `register` or `forget`
        will return it."""
        if seq.params.needs_prompt_outputs or num_found >= len(seq.block_keys):
            return False
        key = seq.block_keys[num_found]
        leader = self._coming.get(key.hash)
        if leader is None:
            return False
        shared = seq.block_keys[num_found : self._share_keys(seq, leader, num_found + 1)]
        last = next(key for key in reversed(shared) if self._coming.get(key.hash) is leader)
        self._awaited.setdefault(last.hash, []).append(seq)
        return True

    def _share_keys(self, seq: Sequence, leader: Sequence, num_equal: int) -> int:
        """Copy keys of `leader`, with which `seq` has the first `num_equal` in common, as far as the same text follows.
        Returns how many they then have in common for certain."""
        block_size = self._pool.block_size
        start = num_equal * block_size
        if max(seq.media_end, leader.media_end) > start:
            return num_equal
        stop = min((seq.num_tokens - 1) // block_size, len(leader.block_keys)) * block_size
        if stop <= start:
            return num_equal
        differs = seq.token_ids[start:stop] != leader.token_ids[start:stop]
        first = int(np.argmax(differs))
        num_shared = num_equal + (first if differs[first] else stop - start) // block_size
        seq.block_keys += leader.block_keys[len(seq.block_keys) : num_shared]
        return num_shared

    def announce(self, seq: Sequence, num_found: int) -> None:
        """A sequence is going to compute its known tokens behind its first `num_found` blocks."""
        if self._pool.enable_prefix_caching:
            num_full = seq.num_tokens // self._pool.block_size
            self._extend_keys(seq, num_full)
            for key in seq.block_keys[num_found:num_full]:
                self._coming.setdefault(key.hash, seq)

    def register(self, seq: Sequence) -> list[Sequence]:
        """Publish the blocks of a sequence that are full and computed. Returns the sequences that waited for them."""
        num_full = seq.num_computed // self._pool.block_size
        if not (self._pool.enable_prefix_caching and seq.shares_blocks) or num_full == seq.num_registered_blocks:
            return []
        self._extend_keys(seq, num_full)
        first, seq.num_registered_blocks = seq.num_registered_blocks, num_full
        for index in range(first, num_full):
            self._pool.register(seq.block_ids[index], seq.block_keys[index])
        return self._settle(seq, first, num_full)

    def forget(self, seq: Sequence) -> list[Sequence]:
        """Withdraw announced blocks that were not computed. Returns the sequences that waited for one."""
        return self._settle(seq, seq.num_registered_blocks, len(seq.block_keys))

    def _settle(self, seq: Sequence, first: int, stop: int) -> list[Sequence]:
        """Return the sequences that waited for blocks `first` … `stop` - 1, which are computed or will never be."""
        released: list[Sequence] = []
        for key in seq.block_keys[first:stop]:
            if self._coming.get(key.hash) is seq:
                del self._coming[key.hash]
                released += self._awaited.pop(key.hash, ())
        return released

    def _iterate_keys(self, seq: Sequence, num_blocks: int) -> Iterator[BlockKey]:
        """The keys of the first `num_blocks` blocks, made as they are needed."""
        for index in range(num_blocks):
            if index == len(seq.block_keys):
                self._extend_keys(seq, min(num_blocks, index + _KEYS_AT_ONCE))
            yield seq.block_keys[index]

    def _extend_keys(self, seq: Sequence, num_blocks: int) -> None:
        extend_block_keys(
            seq.block_keys,
            num_blocks,
            token_ids=seq.token_ids,
            items=seq.items,
            salt=struct.pack("<d", seq.stretch) + seq.cache_salt + seq.prompt_hash,
            block_size=self._pool.block_size,
        )

    def check_integrity(self, *, running: ArrivalQueue, followers: Iterable[Sequence]) -> None:
        """Assert that who computes is running, and that each follower waits for a block that comes."""
        awaiting = {seq.seq_id for seqs in self._awaited.values() for seq in seqs}
        assert all(seq.seq_id in awaiting for seq in followers)
        assert set(self._awaited) <= set(self._coming)
        assert all(seq in running for seq in self._coming.values())

"""Preempts running sequences for those whose turn it is. A preempted sequence waits at its old place and is recomputed.
A sequence that is being computed is never preempted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable

from seesay.llm.scheduling.fair_shares import find_yielding, order_victims
from seesay.llm.scheduling.live_sequences import LiveSequences
from seesay.llm.scheduling.sequence import Sequence


class Preemption:
    """Reserves blocks, and preempts sequences when too few are free."""

    def __init__(self, live: LiveSequences, *, max_batch_size: int) -> None:
        self._live = live
        self._max_batch_size = max_batch_size
        self.total_preemptions = 0

    def find_yielding(self, *, lacks_blocks: bool) -> Sequence | None:
        """The running sequence that gives up its place or its blocks for another owner's. One that is in flight pauses
        in this plan, and is preempted in the next. lacks_blocks: the waiting sequence whose turn it was did not fit
        into the last plan."""
        live = self._live
        lacks_places = len(live.running) >= self._max_batch_size
        if not lacks_places and not lacks_blocks:
            return None
        seq = live.waiting.find_next()
        if seq is None:
            return None
        yielding = find_yielding(live.running, live.waiting.num_running, seq.owner)
        if yielding is None or lacks_places:
            return yielding
        held = Counter[Hashable]()
        for other in live.running:
            held[other.owner] += len(other.block_ids)
        need = live.pool.blocks_for(seq.num_tokens)
        return yielding if held[seq.owner] + need <= held[yielding.owner] else None

    def reserve(self, seq: Sequence, num_tokens: int, preempted: list[int]) -> int:
        """Give `seq` the blocks for up to `num_tokens` more tokens; returns for how many there are blocks.

        Younger sequences that are not in flight are preempted only when there are no blocks for the fewest tokens that
        a step may have, mostly one; their ids go to `preempted`.
        """
        if num_tokens <= 0:
            return 0
        pool = self._live.pool
        held = len(seq.block_ids)
        need = pool.blocks_for(seq.num_scheduled + num_tokens) - held
        if need <= 0:
            return num_tokens
        least = pool.blocks_for(seq.num_scheduled + seq.fit_chunk(seq.num_scheduled, 1)) - held
        while not pool.can_allocate(least):
            if not self._live.groups.try_give_back() and not self._try_preempt(seq, preempted):
                break
        if not pool.can_allocate(least):
            return 0
        need = min(need, pool.num_available)
        num_tokens = min(num_tokens, (held + need) * pool.block_size - seq.num_scheduled)
        num_tokens = seq.fit_chunk(seq.num_scheduled, num_tokens)
        seq.block_ids += pool.allocate(pool.blocks_for(seq.num_scheduled + num_tokens) - held)
        return num_tokens

    def _try_preempt(self, seq: Sequence, preempted: list[int]) -> bool:
        """Preempt a sequence that may lose its blocks to `seq` and is not being computed: the youngest one that is
        younger, where there is one owner."""
        live = self._live
        victims: Iterable[Sequence] = reversed(live.running)
        if len(live.owners) > 1:
            victims = order_victims(live.running, live.waiting.num_running, seq)
        for victim in victims:
            if victim is seq:
                return False
            if not victim.is_in_flight:
                self.preempt(victim)
                preempted.append(victim.seq_id)
                return True
        return False

    def preempt(self, seq: Sequence) -> None:
        """Let a running sequence wait again."""
        seq.num_preemptions += 1
        self.total_preemptions += 1
        self._live.restart(seq)

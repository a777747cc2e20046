"""Starts waiting sequences in their turn, while there are places, tokens and blocks."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable

from seesay.llm.scheduling.fair_shares import TokenShares
from seesay.llm.scheduling.live_sequences import LiveSequences
from seesay.llm.scheduling.sequence import Sequence

_MAX_OVERTAKING = 8
"""Sequences that are admitted by their priority before the oldest one is."""

_MAX_BLOCKED = 32
"""Sequences that a plan finds to wait for something, while another plan follows: each costs a look-up."""

_MAX_FOUND_BLOCKS = 4096
"""Cached blocks that a plan looks up while another plan follows, so that it is made in time."""


class Admission:
    """Admits a waiting sequence when the embeddings of its first chunk are there and the pool has room for all its
    known tokens. One that waits for embeddings, or for a slot for its adapter, lets others pass; one that waits for
    blocks or for a place does not. One whose next block a running sequence is just computing waits for it, and lets
    others pass. Priorities decide whose turn it is, but the oldest is brought forward after `_MAX_OVERTAKING` others,
    so nobody starves.
    Groups release their blocks before a sequence has to wait for blocks.

    lacks_blocks: whether the sequence whose turn it was did not fit into the last plan.
    """

    def __init__(self, live: LiveSequences, *, max_batch_size: int, max_chunk: int) -> None:
        """`max_chunk`: most tokens of a step."""
        self._live = live
        self._max_batch_size = max_batch_size
        self._max_chunk = max_chunk
        self.lacks_blocks = False
        self._num_overtaking = 0  # admitted since somebody was brought forward, while the order was not that of arrival
        self._too_large: tuple[int, int] | None = None  # the waiting head that did not fit, and the blocks there were
        self.total_prefix_queried_tokens = 0
        self.total_prefix_hit_tokens = 0

    def reset(self) -> None:
        """Forget which sequence did not fit."""
        self.lacks_blocks, self._num_overtaking, self._too_large = False, 0, None

    def plan(
        self,
        add_row: Callable[[Sequence, int], None],
        spare: int,
        shares: TokenShares,
        promised: int,
        preempted: Iterable[int],
        only: Container[int] | None = None,
    ) -> tuple[int, int]:
        """Start waiting sequences, none of an owner of which some were just preempted. `add_row` plans so many tokens
        of one; `only`: no others than these begin. Takes and returns the tokens left, and the blocks that running
        sequences still need for their known tokens."""
        live, pool = self._live, self._live.pool
        losers = {live.by_id[seq_id].owner for seq_id in preempted}
        self.lacks_blocks = False
        num_blocked = num_found = num_begun = 0
        while spare > 0 and len(live.running) < self._max_batch_size and (seq := self._find_next(shares, only)):
            if seq.owner in losers:
                break
            if num_found >= _MAX_FOUND_BLOCKS or num_blocked >= _MAX_BLOCKED:
                if num_begun or any(other.is_in_flight for other in live.running):  # another plan will follow
                    break
                num_found = num_blocked = 0
            available = pool.num_available - promised
            if live.running and (
                available < 1 or not live.has_room_for_state or self._is_still_too_large(seq, available)
            ):
                if live.groups.try_give_back():
                    continue
                self.lacks_blocks = True
                break
            beginning = live.find_beginning(seq)
            num_found += len(beginning.places)
            if live.try_follow(seq, beginning):
                num_blocked += 1
                continue
            start, cached, _ = beginning
            live.needs.assume_computed(seq, start)
            if (cause := self._find_missing(seq, start)) is not None:
                live.block(seq, cause)
                num_blocked += 1
                continue
            need = pool.blocks_for(seq.num_tokens) - len(cached) + pool.count_cached(cached)
            if need > available and live.groups.try_give_back():
                continue
            if need > available and live.running:
                self._too_large = (seq.seq_id, available)
                self.lacks_blocks = True
                break
            self._count(seq, start)
            live.admit(seq, beginning)
            self._num_overtaking += seq.place != seq.arrival or live.waiting.has_priorities
            num_tokens = min(seq.num_tokens - start, spare, shares.left(seq.owner), seq.ready_until - start)
            num_tokens = seq.fit_chunk(start, num_tokens)
            seq.block_ids += pool.allocate(pool.blocks_for(start + num_tokens) - len(seq.block_ids))
            add_row(seq, num_tokens)
            spare -= shares.spend(seq.owner, num_tokens)
            num_begun += 1
            promised += pool.blocks_for(seq.num_tokens) - len(seq.block_ids)
        return spare, promised

    def _find_missing(self, seq: Sequence, start: int) -> Hashable | None:
        """What a sequence lacks to begin at `start`, beside blocks and a place."""
        if not seq.can_start(start, self._max_chunk):
            return self._live.needs.find_missing(seq)
        adapters = self._live.adapters
        return None if adapters.has_room(seq) else adapters.wait(seq)

    def _find_next(self, shares: TokenShares, only: Container[int] | None) -> Sequence | None:
        """The waiting sequence whose turn it is, of an owner with tokens left."""
        waiting = self._live.waiting
        if only is not None:
            return next((seq for seq in waiting if seq.seq_id in only), None)
        if not waiting:
            return None
        if self._num_overtaking >= _MAX_OVERTAKING:
            self._num_overtaking = 0
            self._live.bring_forward(waiting.oldest)
        seq = waiting.find_next(shares)
        if seq is None:  # owners with a budget left cannot use it now: others may
            shares.open()
            seq = waiting.find_next(shares)
        return seq

    def _is_still_too_large(self, seq: Sequence, available: int) -> bool:
        """Whether `seq` did not fit before, and no more blocks are available now: it is not worth another look-up."""
        return self._too_large is not None and self._too_large[0] == seq.seq_id and self._too_large[1] >= available

    def _count(self, seq: Sequence, num_cached: int) -> None:
        """Count what the prefix cache had when a sequence is admitted for the first time."""
        if not seq.was_admitted:
            seq.was_admitted = True
            seq.num_cached_tokens = num_cached
            self.total_prefix_queried_tokens += seq.num_tokens
            self.total_prefix_hit_tokens += num_cached

"""Starts waiting sequences in their turn, while there are places, tokens and blocks."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from seesay.llm.plans.step_plan import Row
from seesay.llm.scheduling.live_sequences import Beginning, LiveSequences
from seesay.llm.scheduling.open_step import OpenStep
from seesay.llm.scheduling.sequence import Sequence

_MAX_OVERTAKING = 8
"""Sequences that are admitted by their priority before the oldest one is."""

_MAX_BLOCKED = 32
"""Sequences that a plan finds to wait for something, while another plan follows: each costs a look-up."""

_MAX_FOUND_BLOCKS = 4096
"""Cached blocks that a plan looks up while another plan follows, so that it is made in time."""


@dataclass(slots=True)
class _Found:
    """Look-ups of one plan among waiting sequences: cached blocks, sequences that wait for something, and those
    that begin."""

    num_blocks: int = 0
    num_blocked: int = 0
    num_begun: int = 0


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

    def plan(self, step: OpenStep, make_row: Callable[[Sequence, int], Row]) -> None:
        """Start waiting sequences, none of an owner of which some were just preempted. `make_row` plans so many tokens
        of one."""
        live = self._live
        losers = {live.by_id[seq_id].owner for seq_id in step.preempted}
        self.lacks_blocks = False
        found = _Found()
        while step.spare > 0 and len(live.running) < self._max_batch_size and (seq := self._find_next(step)):
            if seq.owner in losers or self._has_found_enough(found) or not self._try_begin(seq, step, found, make_row):
                break

    def _has_found_enough(self, found: _Found) -> bool:
        """Return whether the other waiting sequences are left to the plan that follows. Where none will, the counts
        begin anew."""
        if found.num_blocks < _MAX_FOUND_BLOCKS and found.num_blocked < _MAX_BLOCKED:
            return False
        if found.num_begun or any(other.is_in_flight for other in self._live.running):
            return True
        found.num_blocks = found.num_blocked = 0
        return False

    def _try_begin(
        self, seq: Sequence, step: OpenStep, found: _Found, make_row: Callable[[Sequence, int], Row]
    ) -> bool:
        """Begin a sequence, or note what it waits for. Returns whether others may follow: not where it lacks blocks."""
        live, pool = self._live, self._live.pool
        available = pool.num_available - step.promised
        if self._lacks_room(seq, available):
            self.lacks_blocks = not live.groups.try_give_back()
            return not self.lacks_blocks
        beginning = live.find_beginning(seq)
        found.num_blocks += len(beginning.places)
        if self._waits(seq, beginning):
            found.num_blocked += 1
            return True
        need = pool.blocks_for(seq.num_tokens) - len(beginning.places) + pool.count_cached(beginning.places)
        if need > available and live.groups.try_give_back():
            return True
        if need > available and live.running:
            self._too_large = (seq.seq_id, available)
            self.lacks_blocks = True
            return False
        self._begin(seq, step, beginning, make_row)
        found.num_begun += 1
        return True

    def _lacks_room(self, seq: Sequence, available: int) -> bool:
        """Return whether a sequence has to wait for blocks, as far as that is known without a look-up of its own."""
        if not self._live.running:
            return False
        return available < 1 or not self._live.has_room_for_state or self._is_still_too_large(seq, available)

    def _waits(self, seq: Sequence, beginning: Beginning) -> bool:
        """Return whether a sequence now waits for another one's blocks, for embeddings or for a slot."""
        if self._live.try_follow(seq, beginning):
            return True
        self._live.needs.assume_computed(seq, beginning.num_tokens)
        if (cause := self._find_missing(seq, beginning.num_tokens)) is not None:
            self._live.block(seq, cause)
            return True
        return False

    def _begin(
        self, seq: Sequence, step: OpenStep, beginning: Beginning, make_row: Callable[[Sequence, int], Row]
    ) -> None:
        pool, start = self._live.pool, beginning.num_tokens
        self._count(seq, start)
        self._live.admit(seq, beginning)
        self._num_overtaking += seq.place != seq.arrival or self._live.waiting.has_priorities
        num_tokens = min(seq.num_tokens - start, step.spare, step.shares.left(seq.owner), seq.ready_until - start)
        num_tokens = seq.fit_chunk(start, num_tokens)
        seq.block_ids += pool.allocate(pool.blocks_for(start + num_tokens) - len(seq.block_ids))
        step.rows.append(make_row(seq, num_tokens))
        step.spare -= step.shares.spend(seq.owner, num_tokens)
        step.promised += pool.blocks_for(seq.num_tokens) - len(seq.block_ids)

    def _find_missing(self, seq: Sequence, start: int) -> Hashable | None:
        """What a sequence lacks to begin at `start`, beside blocks and a place."""
        if not seq.can_start(start, self._max_chunk):
            return self._live.needs.find_missing(seq)
        adapters = self._live.adapters
        return None if adapters.has_room(seq) else adapters.wait(seq)

    def _find_next(self, step: OpenStep) -> Sequence | None:
        """The waiting sequence whose turn it is, of an owner with tokens left."""
        waiting, shares = self._live.waiting, step.shares
        if step.only is not None:
            chosen = next((seq for seq in waiting if seq.seq_id in step.only), None)
            if chosen is not None and shares.left(chosen.owner) < 1:  # no other owner may use what is left
                shares.open()
            return chosen
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

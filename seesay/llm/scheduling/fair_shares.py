"""Divides places, blocks and tokens among the owners of sequences.

Pure functions of who has what; nothing is remembered, so an owner that was idle has saved up nothing and owes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

from seesay.llm.scheduling.sequence import NO_LIMIT

if TYPE_CHECKING:
    from seesay.llm.scheduling.arrival_queue import ArrivalQueue
    from seesay.llm.scheduling.sequence import Sequence


def divide_tokens(total: int, wanted: Mapping[Hashable, int]) -> dict[Hashable, int]:
    """Return how many of `total` tokens each owner gets: equally many, but none more than it wants (max-min fairness),
    and at least one, so that no owner waits for another that cannot use its tokens now."""
    shares: dict[Hashable, int] = {}
    for num_left, owner in zip(range(len(wanted), 0, -1), sorted(wanted, key=lambda owner: wanted[owner])):
        shares[owner] = max(1, min(wanted[owner], -(-total // num_left)))
        total = max(0, total - shares[owner])
    return shares


class TokenShares:
    """The prompt tokens that owners may still have in a step. Those for whom nothing was divided may have as many as
    anybody got, while there are any."""

    def __init__(self, shares: Mapping[Hashable, int] | None = None) -> None:
        """`shares`: of `divide_tokens`; None where all is one owner's."""
        self._left = dict(shares or {})
        self._others = max(self._left.values(), default=NO_LIMIT)

    def left(self, owner: Hashable) -> int:
        """Return how many tokens an owner may still have."""
        return self._left.get(owner, self._others)

    def spend(self, owner: Hashable, num_tokens: int) -> int:
        """Take tokens from the share of an owner; returns how many."""
        self._left[owner] = self.left(owner) - num_tokens
        return num_tokens

    def open(self) -> None:
        """Let all owners have what is left."""
        self._left, self._others = {}, NO_LIMIT


def find_yielding(running: ArrivalQueue, counts: Counter[Hashable], owner: Hashable) -> Sequence | None:
    """Return the running sequence that makes room for one of `owner`: the youngest of the owner with the most, as long
    as that one still has as many as `owner` then. None when places are divided equally already."""
    richest, most = max(counts.items(), key=lambda entry: entry[1], default=(owner, 0))
    if most <= counts[owner] + 1:
        return None
    return next(seq for seq in reversed(running) if seq.owner == richest)


def order_victims(running: ArrivalQueue, counts: Counter[Hashable], seq: Sequence) -> list[Sequence]:
    """Return the running sequences that may lose their blocks to `seq`, the first to lose them first: those of owners
    with more running ones than that of `seq`, and younger ones of owners with as many."""
    rank = {other.seq_id: (counts[other.owner], other.arrival) for other in running}
    victims = [other for other in running if rank[other.seq_id] > rank[seq.seq_id]]
    return sorted(victims, key=lambda other: rank[other.seq_id], reverse=True)

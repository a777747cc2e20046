"""Divides places, blocks and tokens among the owners of sequences.

Pure functions of who has what; nothing is remembered, so an owner that was idle has saved up nothing and owes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seesay.llm.scheduling.arrival_queue import ArrivalQueue, PlaceQueue
    from seesay.llm.scheduling.sequence import Sequence


def count_by_owner(sequences: Iterable[Sequence]) -> Counter[Hashable]:
    """Return how many of `sequences` each owner has."""
    return Counter(seq.owner for seq in sequences)


def divide_tokens(total: int, wanted: Mapping[Hashable, int]) -> dict[Hashable, int]:
    """Return how many of `total` tokens each owner gets: equally many, but none more than it wants (max-min fairness),
    and at least one, so that nobody waits for an owner that cannot use its tokens now."""
    shares: dict[Hashable, int] = {}
    for num_left, owner in zip(range(len(wanted), 0, -1), sorted(wanted, key=lambda owner: wanted[owner])):
        shares[owner] = max(1, min(wanted[owner], -(-total // num_left)))
        total = max(0, total - shares[owner])
    return shares


def find_next(waiting: PlaceQueue, running: Counter[Hashable], shares: Mapping[Hashable, int]) -> Sequence | None:
    """Return the waiting sequence whose turn it is: the first of the owner with the fewest running ones, of several
    such owners the oldest. Owners without a share are left out. Priorities count among the sequences of one owner
    alone."""
    firsts: dict[Hashable, Sequence] = {}
    num_owners = sum(share > 0 for share in shares.values())
    for seq in waiting:
        if shares.get(seq.owner, 0) > 0:
            firsts.setdefault(seq.owner, seq)
            if len(firsts) == num_owners:
                break
            if not running[seq.owner] and not waiting.has_priorities:  # nobody has fewer, and nobody is older
                break
    return min(firsts.values(), key=lambda seq: (running[seq.owner], seq.arrival), default=None)


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

"""The sequences that wait for their turn: those of each owner by place, and owners by whose turn it is.

Nothing here costs more when more sequences wait, but for shifts in sorted lists of references.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING

from seesay.llm.scheduling.arrival_queue import ArrivalQueue, PlaceQueue

if TYPE_CHECKING:
    from seesay.llm.scheduling.fair_shares import TokenShares
    from seesay.llm.scheduling.sequence import Sequence

_Turn = tuple[int, int, Hashable]
"""Running sequences of an owner, the arrival of its first waiting one, and the owner, which is never compared."""


class WaitingQueue:
    """Waiting sequences. The next turn is the first sequence's of the owner with the fewest running ones; of several
    such owners, of the one whose first is the oldest. Priorities count among the sequences of one owner alone.

    num_running: of each owner that has any, its running sequences.
    """

    def __init__(self) -> None:
        self.num_running: Counter[Hashable] = Counter()
        self._by_arrival = ArrivalQueue()
        self._by_owner: dict[Hashable, PlaceQueue] = {}
        self._num_tokens: Counter[Hashable] = Counter()
        self._turns: list[_Turn] = []
        self._turn_of: dict[Hashable, _Turn] = {}
        self._num_moved = 0  # whose place is not that of their arrival

    def __len__(self) -> int:
        return len(self._by_arrival)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._by_arrival)

    def __contains__(self, seq: Sequence) -> bool:
        return seq in self._by_arrival

    @property
    def oldest(self) -> Sequence:
        """The one that arrived first."""
        return self._by_arrival[0]

    @property
    def has_priorities(self) -> bool:
        """Whether the order is not that of arrival for certain: somebody has another place."""
        return self._num_moved > 0

    def add(self, seq: Sequence) -> None:
        """Let a sequence wait."""
        if seq in self:
            return
        self._by_arrival.add(seq)
        self._by_owner.setdefault(seq.owner, PlaceQueue()).add(seq)
        self._num_tokens[seq.owner] += seq.num_tokens
        self._num_moved += seq.place != seq.arrival
        self._update_turn(seq.owner)

    def discard(self, seq: Sequence) -> None:
        """Let a sequence wait no more; nothing happens when it does not."""
        if seq not in self:
            return
        self._by_arrival.discard(seq)
        self._by_owner[seq.owner].discard(seq)
        self._num_tokens[seq.owner] -= seq.num_tokens
        self._num_moved -= seq.place != seq.arrival
        if not self._by_owner[seq.owner]:
            del self._by_owner[seq.owner], self._num_tokens[seq.owner]
        self._update_turn(seq.owner)

    def note_running(self, seq: Sequence, change: int) -> None:
        """A sequence runs from now on (1), or no more (-1)."""
        self.num_running[seq.owner] += change
        if not self.num_running[seq.owner]:
            del self.num_running[seq.owner]
        self._update_turn(seq.owner)

    def _update_turn(self, owner: Hashable) -> None:
        turn = None
        if (queue := self._by_owner.get(owner)) is not None:
            turn = self.num_running[owner], queue[0].arrival, owner
        if (old := self._turn_of.pop(owner, None)) is not None:
            del self._turns[bisect_left(self._turns, old)]
        if turn is not None:
            insort(self._turns, turn)
            self._turn_of[owner] = turn

    def find_next(self, shares: TokenShares | None = None) -> Sequence | None:
        """Return the sequence whose turn it is, of an owner with tokens left in `shares`."""
        for _, _, owner in self._turns:
            if shares is None or shares.left(owner) > 0:
                return self._by_owner[owner][0]
        return None

    def find_owners(self, most: int) -> list[tuple[Hashable, int]]:
        """Return the first owners by turn, at most so many, and the tokens of all that wait of each."""
        return [(owner, self._num_tokens[owner]) for _, _, owner in self._turns[: max(0, most)]]

    def iterate_turns(self, most: int) -> Iterator[Sequence]:
        """Yield sequences about in the order of their turns, at most so many: the first of each owner, then the second
        of each."""
        queues = [iter(self._by_owner[owner]) for _, _, owner in self._turns[:most]]
        return islice(_alternate(queues), most)

    def check_integrity(self) -> None:
        """Assert that all orders are of the same sequences."""
        by_owner = list(chain.from_iterable(self._by_owner.values()))
        assert len(by_owner) == len(self) and set(by_owner) == set(self)
        tokens = Counter[Hashable]()
        for seq in self:
            tokens[seq.owner] += seq.num_tokens
        assert tokens == self._num_tokens
        assert sum(seq.place != seq.arrival for seq in self) == self._num_moved
        turns = {owner: (self.num_running[owner], queue[0].arrival, owner) for owner, queue in self._by_owner.items()}
        assert turns == self._turn_of and sorted(turns.values(), key=lambda turn: turn[:2]) == self._turns


def _alternate(queues: list[Iterator[Sequence]]) -> Iterator[Sequence]:
    while queues:
        left = []
        for queue in queues:
            if (seq := next(queue, None)) is not None:
                yield seq
                left.append(queue)
        queues = left

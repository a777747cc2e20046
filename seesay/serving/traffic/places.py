"""Limits on the HTTP requests inside the engine, and on the sequences of each owner.

Thread-safe: the event loops of several threads may share them.
"""

from __future__ import annotations

import itertools
import threading
from bisect import insort
from collections import Counter
from collections.abc import Callable, Hashable

_MAX_OVERTAKING = 8
_FIRST = -(1 << 62)


class Ticket:
    """The places of one HTTP request. `notify` is called, in any thread, when new places can be taken with `take`."""

    def __init__(
        self, number: int, owner: Hashable, priority: int, notify: Callable[[], None], lock: threading.Lock
    ) -> None:
        self._lock = lock  # the lock of `Places`
        self.number = number
        self.place = (priority, number)
        self.owner = owner
        self.is_inside = False
        self.num_wanted = 0  # waiting sequences
        self.num_held = 0  # places, granted ones included
        self._num_granted = 0
        self._notify = notify

    def grant(self) -> None:
        self.is_inside = True
        self.num_wanted -= 1
        self.num_held += 1
        self._num_granted += 1
        if self._num_granted == 1:
            self._notify()

    def take(self) -> int:
        """Return the number of places granted since the last call."""
        with self._lock:
            taken, self._num_granted = self._num_granted, 0
        return taken


class Places:
    """Admit at most `max_requests` HTTP requests, and at most `max_per_owner` sequences of one owner.

    Owners take turns: a place goes to the owner with the fewest sequences inside, and among equals to the one that came
    first. Within an owner it goes to the request with the lowest priority, of several to the oldest; and to the oldest
    of all after `_MAX_OVERTAKING` others. An owner with nothing inside does not wait for other owners.
    """

    def __init__(self, max_requests: int, max_per_owner: int | None = None) -> None:
        self._max_requests = max_requests
        self._max_per_owner = max_per_owner
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._tickets: set[Ticket] = set()
        self._num_inside = 0
        self._held: Counter[Hashable] = Counter()  # sequences inside, by owner
        self._waiting: dict[Hashable, list[Ticket]] = {}  # tickets with waiting sequences, by owner, sorted by place
        self._num_overtaking = Counter[Hashable]()  # places given to others than the oldest ticket, by owner

    @property
    def num_waiting(self) -> int:
        """Number of HTTP requests with no sequence inside."""
        return len(self._tickets) - self._num_inside

    def enter(self, owner: Hashable, notify: Callable[[], None], priority: int = 0) -> Ticket:
        """Return a ticket for an HTTP request. The caller must `leave` with it."""
        ticket = Ticket(next(self._numbers), owner, priority, notify, self._lock)
        with self._lock:
            self._tickets.add(ticket)
        return ticket

    def ask(self, ticket: Ticket, num_sequences: int) -> None:
        """Request places for `num_sequences` more sequences."""
        with self._lock:
            if not ticket.num_wanted:
                insort(self._waiting.setdefault(ticket.owner, []), ticket, key=lambda other: other.place)
            ticket.num_wanted += num_sequences
            self._hand_out()

    def give_back(self, ticket: Ticket, num_sequences: int = 1) -> None:
        """Return the places of sequences that have ended."""
        with self._lock:
            ticket.num_held -= num_sequences
            self._release(ticket.owner, num_sequences)
            self._hand_out()

    def leave(self, ticket: Ticket) -> None:
        """Return all places of an HTTP request that has ended."""
        with self._lock:
            self._tickets.remove(ticket)
            self._num_inside -= ticket.is_inside
            if ticket.num_wanted:
                self._stop_waiting(ticket)
            self._release(ticket.owner, ticket.num_held)
            self._hand_out()

    def _release(self, owner: Hashable, num_sequences: int) -> None:
        self._held[owner] -= num_sequences
        if not self._held[owner]:
            del self._held[owner]

    def _stop_waiting(self, ticket: Ticket) -> None:
        tickets = self._waiting[ticket.owner]
        tickets.remove(ticket)
        if not tickets:
            del self._waiting[ticket.owner]
            del self._num_overtaking[ticket.owner]

    def _hand_out(self) -> None:
        while self._waiting and (ticket := self._find_next()) is not None:
            self._num_inside += not ticket.is_inside
            self._held[ticket.owner] += 1
            ticket.grant()
            self._watch_oldest(ticket)
            if not ticket.num_wanted:
                self._stop_waiting(ticket)

    def _watch_oldest(self, ticket: Ticket) -> None:
        """Count a place given to `ticket` while an older one of its owner waits, and let that one be next if too many
        were."""
        tickets = self._waiting[ticket.owner]
        if all(other.place[0] == ticket.place[0] for other in (tickets[0], tickets[-1])):
            return
        oldest = min(tickets, key=lambda other: other.number)
        self._num_overtaking[ticket.owner] += oldest is not ticket
        if self._num_overtaking[ticket.owner] >= _MAX_OVERTAKING:
            self._num_overtaking[ticket.owner] = 0
            tickets.remove(oldest)
            oldest.place = (_FIRST, oldest.number)
            insort(tickets, oldest, key=lambda other: other.place)

    def _find_next(self) -> Ticket | None:
        firsts = (tickets[0] for tickets in self._waiting.values())
        allowed = (ticket for ticket in firsts if self._may_have_one(ticket))
        return min(allowed, key=lambda ticket: (self._held[ticket.owner], ticket.number), default=None)

    def _may_have_one(self, ticket: Ticket) -> bool:
        held = self._held[ticket.owner]
        if self._max_per_owner is not None and held >= self._max_per_owner:
            return False
        return ticket.is_inside or self._num_inside < self._max_requests or not held

"""Which HTTP requests are in the engine, and how many sequences each has there.

Event loops of several threads may share it.
"""

from __future__ import annotations

import itertools
import threading
from bisect import insort
from collections import Counter
from collections.abc import Callable, Hashable


class Ticket:
    """The places of one HTTP request. `notify` is called, in any thread, when there are new ones to `take`."""

    def __init__(self, number: int, owner: Hashable, notify: Callable[[], None], lock: threading.Lock) -> None:
        self._lock = lock  # of the places
        self.number = number
        self.owner = owner
        self.is_inside = False
        self.num_wanted = 0  # sequences that wait
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
        """The number of places granted since the last call."""
        with self._lock:
            taken, self._num_granted = self._num_granted, 0
        return taken


class Places:
    """At most `max_requests` HTTP requests are inside, and of one owner at most `max_per_owner` sequences.

    Owners take turns: a place goes to the owner with the fewest sequences inside, of several to the one that came
    first; within an owner to the oldest request. An owner of whom nothing is inside need not wait for others to leave.
    """

    def __init__(self, max_requests: int, max_per_owner: int | None = None) -> None:
        self._max_requests = max_requests
        self._max_per_owner = max_per_owner
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._tickets: set[Ticket] = set()
        self._num_inside = 0
        self._held: Counter[Hashable] = Counter()  # sequences inside, by owner
        self._waiting: dict[Hashable, list[Ticket]] = {}  # with sequences that wait, by owner, oldest first

    @property
    def num_waiting(self) -> int:
        """HTTP requests of which nothing is inside."""
        return len(self._tickets) - self._num_inside

    def enter(self, owner: Hashable, notify: Callable[[], None]) -> Ticket:
        """A ticket for an HTTP request; `leave` with it in the end."""
        ticket = Ticket(next(self._numbers), owner, notify, self._lock)
        with self._lock:
            self._tickets.add(ticket)
        return ticket

    def ask(self, ticket: Ticket, num_sequences: int) -> None:
        """Ask for places for so many more sequences."""
        with self._lock:
            if not ticket.num_wanted:
                insort(self._waiting.setdefault(ticket.owner, []), ticket, key=lambda other: other.number)
            ticket.num_wanted += num_sequences
            self._hand_out()

    def give_back(self, ticket: Ticket, num_sequences: int = 1) -> None:
        """Some sequences are over."""
        with self._lock:
            ticket.num_held -= num_sequences
            self._release(ticket.owner, num_sequences)
            self._hand_out()

    def leave(self, ticket: Ticket) -> None:
        """The HTTP request is over, and with it all its sequences."""
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

    def _hand_out(self) -> None:
        while (ticket := self._find_next()) is not None:
            self._num_inside += not ticket.is_inside
            self._held[ticket.owner] += 1
            ticket.grant()
            if not ticket.num_wanted:
                self._stop_waiting(ticket)

    def _find_next(self) -> Ticket | None:
        firsts = (tickets[0] for tickets in self._waiting.values())
        allowed = (ticket for ticket in firsts if self._may_have_one(ticket))
        return min(allowed, key=lambda ticket: (self._held[ticket.owner], ticket.number), default=None)

    def _may_have_one(self, ticket: Ticket) -> bool:
        held = self._held[ticket.owner]
        if self._max_per_owner is not None and held >= self._max_per_owner:
            return False
        return ticket.is_inside or self._num_inside < self._max_requests or not held

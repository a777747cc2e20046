"""Whose turn it is of those that wait: owners by what they have, the sequences of each by place."""

from __future__ import annotations

import random
from typing import Any

import pytest
from llm.scheduling.test_scheduler import make_sequence

from seesay.llm.scheduling.fair_shares import TokenShares
from seesay.llm.scheduling.sequence import Sequence
from seesay.llm.scheduling.waiting_queue import WaitingQueue


class Parts:
    """A queue, and sequences that arrive."""

    def __init__(self) -> None:
        self.queue = WaitingQueue()
        self.num = 0

    def make(self, owner: str, *, priority: int = 0, num_tokens: int = 5) -> Sequence:
        seq = make_sequence(self.num, num_tokens)
        seq.owner, seq.arrival, seq.place = owner, self.num, 1000 * priority + self.num
        self.num += 1
        return seq

    def add(self, owners: str, **options: Any) -> list[Sequence]:
        """Let one wait of each of these owners."""
        added = [self.make(owner, **options) for owner in owners]
        for seq in added:
            self.queue.add(seq)
        self.queue.check_integrity()
        return added

    def run(self, seq: Sequence) -> None:
        self.queue.discard(seq)
        self.queue.note_running(seq, 1)
        self.queue.check_integrity()


@pytest.fixture
def parts() -> Parts:
    return Parts()


def test_nobody_is_next_where_nobody_waits(parts: Parts) -> None:
    assert parts.queue.find_next() is None and parts.queue.find_next(TokenShares({"a": 3})) is None
    assert not list(parts.queue) and len(parts.queue) == 0 and not parts.queue.has_priorities


def test_the_owner_with_the_fewest_running_ones_is_next(parts: Parts) -> None:
    """Of several, the one whose first is the oldest."""
    first, second, third, fourth = parts.add("aaba")
    assert parts.queue.find_next() is first and parts.queue.oldest is first
    parts.run(first)
    assert parts.queue.find_next() is third
    parts.run(third)
    assert parts.queue.find_next() is second
    parts.queue.note_running(first, -1)
    parts.queue.note_running(third, -1)
    assert parts.queue.find_next() is second and not parts.queue.num_running
    parts.queue.discard(second)
    assert parts.queue.find_next() is fourth


def test_who_has_no_tokens_left_lets_others_pass(parts: Parts) -> None:
    first, second = parts.add("ab")
    assert parts.queue.find_next(TokenShares({"a": 1, "b": 1})) is first
    assert parts.queue.find_next(TokenShares({"a": 0, "b": 1})) is second
    assert parts.queue.find_next(TokenShares({"a": -1, "b": 0})) is None
    assert parts.queue.find_next(TokenShares()) is first


def test_priorities_count_among_those_of_one_owner(parts: Parts) -> None:
    [first] = parts.add("a")
    has_priorities = [parts.queue.has_priorities]
    [urgent] = parts.add("a", priority=-1)
    [other] = parts.add("b", priority=-5)
    has_priorities.append(parts.queue.has_priorities)
    assert has_priorities == [False, True] and parts.queue.oldest is first
    parts.run(urgent)
    assert parts.queue.find_next() is other, "it has fewer running ones"
    parts.queue.discard(other)
    assert parts.queue.find_next() is first and not parts.queue.has_priorities


def test_an_owner_comes_by_the_arrival_of_its_first(parts: Parts) -> None:
    [other] = parts.add("b")
    parts.add("a")
    [urgent] = parts.add("a", priority=-1)
    assert parts.queue.find_next() is other, "the urgent one of a is younger"
    parts.queue.discard(urgent)
    assert parts.queue.find_next() is other


def test_owners_have_turns_and_tokens(parts: Parts) -> None:
    parts.add("aab", num_tokens=5)
    [last] = parts.add("a", num_tokens=7)
    assert parts.queue.find_owners(9) == [("a", 17), ("b", 5)]
    assert parts.queue.find_owners(1) == [("a", 17)]
    assert parts.queue.find_owners(0) == parts.queue.find_owners(-1) == []
    parts.queue.discard(last)
    assert parts.queue.find_owners(9) == [("a", 10), ("b", 5)]


def test_turns_alternate_between_owners(parts: Parts) -> None:
    parts.add("aaabbc")
    assert [seq.seq_id for seq in parts.queue.iterate_turns(9)] == [0, 3, 5, 1, 4, 2]
    assert [seq.seq_id for seq in parts.queue.iterate_turns(4)] == [0, 3, 5, 1]
    assert [seq.seq_id for seq in parts.queue.iterate_turns(1)] == [0]
    assert list(parts.queue.iterate_turns(0)) == []


def test_what_is_done_twice_is_done_once(parts: Parts) -> None:
    [first, second] = parts.add("ab", priority=1)
    parts.queue.add(first)
    assert len(parts.queue) == 2 and parts.queue.find_owners(1) == [("a", 5)]
    parts.queue.check_integrity()
    for _ in range(2):
        parts.queue.discard(first)
        parts.queue.check_integrity()
    assert first not in parts.queue and second in parts.queue and list(parts.queue) == [second]


def test_all_orders_are_of_the_same_sequences_whatever_happens(parts: Parts) -> None:
    draw = random.Random(0)
    waiting: list[Sequence] = []
    running: list[Sequence] = []
    for _ in range(400):
        match draw.choice(["add", "add", "run", "end", "leave"]):
            case "add":
                waiting += parts.add(draw.choice("abc"), priority=draw.choice([0, 0, 1]))
            case "run" if (seq := parts.queue.find_next()) is not None:
                fewest = min(parts.queue.num_running[each.owner] for each in waiting)
                assert parts.queue.num_running[seq.owner] == fewest
                waiting.remove(seq)
                running.append(seq)
                parts.run(seq)
            case "end" if running:
                parts.queue.note_running(running.pop(draw.randrange(len(running))), -1)
            case "leave" if waiting:
                parts.queue.discard(waiting.pop(draw.randrange(len(waiting))))
        parts.queue.check_integrity()
        assert set(parts.queue) == set(waiting)

"""Calls that other threads leave for the loop's thread."""

from __future__ import annotations

import queue
from collections.abc import Callable

import pytest

from seesay.engine.core.inbox import Inbox


def make_inbox(*numbers: int) -> tuple[Inbox, list[int]]:
    """Return an inbox with calls that note numbers, and the list in which they note them."""
    inbox, noted = Inbox(), list[int]()
    for number in numbers:
        inbox.put(lambda number=number: noted.append(number))  # type: ignore[misc]
    return inbox, noted


def test_the_loop_waits_for_the_first_call_alone() -> None:
    noted = list[str]()

    class Calls:
        def get(self) -> Callable[[], None]:
            return lambda: noted.append("waited")

        def get_nowait(self) -> Callable[[], None]:
            raise queue.Empty

    inbox, calls = Inbox(), Calls()
    inbox._calls = calls  # type: ignore[assignment]
    assert inbox.drain(wait=False) is False and not noted
    assert inbox.drain(wait=True) is False and noted == ["waited"]


def test_calls_are_made_in_the_order_in_which_they_came() -> None:
    inbox, noted = make_inbox(1, 2, 3)
    assert not noted, "they wait for the loop"
    assert inbox.drain(wait=False) is False and noted == [1, 2, 3]
    assert inbox.drain(wait=False) is False and noted == [1, 2, 3]


@pytest.mark.parametrize(("limit", "made", "has_more"), [(1, [1], True), (2, [1, 2], True), (3, [1, 2, 3], True),
                                                         (4, [1, 2, 3], False)])  # fmt: skip
@pytest.mark.parametrize("wait", [False, True])
def test_no_more_calls_are_made_than_are_allowed(limit: int, made: list[int], has_more: bool, wait: bool) -> None:
    inbox, noted = make_inbox(1, 2, 3)
    assert inbox.drain(wait=wait, limit=limit) is has_more and noted == made
    inbox.drain(wait=False)
    assert noted == [1, 2, 3], "the others come next"


def test_a_call_that_leaves_another_has_it_made_at_once() -> None:
    inbox, noted = make_inbox()
    inbox.put(lambda: inbox.put(lambda: noted.append(1)))
    assert inbox.drain(wait=False) is False and noted == [1]


def test_a_call_that_fails_leaves_the_others() -> None:
    inbox, noted = make_inbox()

    def fail() -> None:
        raise ZeroDivisionError

    inbox.put(fail)
    inbox.put(lambda: noted.append(2))
    with pytest.raises(ZeroDivisionError):
        inbox.drain(wait=False)
    assert not noted
    inbox.drain(wait=False)
    assert noted == [2]

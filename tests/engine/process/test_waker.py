"""What wakes a thread never waits itself, and is not lost."""

from __future__ import annotations

import os

import pytest

from seesay.engine.process.waker import Waker

pytestmark = pytest.mark.timeout(60)


def test_a_wait_ends_for_what_came_before_it_and_once() -> None:
    waker = Waker()
    waker.wake()
    waker.wake()
    waker.wait()
    waker.wait(0.0)  # for nothing: both were taken
    waker.take()
    waker.close()


def test_no_number_of_calls_blocks() -> None:
    """Nobody may take them for a while."""
    waker = Waker()
    assert not os.get_blocking(waker.fileno()) and not os.get_blocking(waker.signal_descriptor)
    for _ in range(20_000):
        waker.wake()
    waker.wait()
    waker.close()
    waker.wake()

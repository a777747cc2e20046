"""Waits of ranks that take long are logged, now and then."""

from __future__ import annotations

import pytest

from seesay.engine.process.ranks.waits import PATIENCE_S, Waits


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_what_a_rank_does_is_known_until_it_ends() -> None:
    waits = Waits(3)
    assert waits.find(1) is None
    waits.begin(1, "loading")
    waits.begin(2, "profile")
    assert waits.find(1) == "loading" and waits.find(2) == "profile"
    waits.begin(1, "warm_up")
    assert waits.find(1) == "warm_up"
    waits.end(1)
    waits.end(1)
    assert waits.find(1) is None and waits.find(2) == "profile"


def test_it_is_logged_after_a_while_and_again(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    waits = Waits(3, clock)
    waits.begin(2, "loading")
    clock.now_s += 4
    waits.begin(1, "profile")
    with caplog.at_level("INFO", "seesay"):
        waits.log_long()
        clock.now_s += PATIENCE_S - 4.5
        waits.log_long()
        assert not caplog.records
        clock.now_s += 0.5
        waits.log_long()
        clock.now_s += 4
        waits.log_long()
        waits.log_long()
        clock.now_s += 6
        waits.begin(1, "warm_up")
        waits.log_long()
        clock.now_s += PATIENCE_S
        waits.log_long()
    assert [record.getMessage() for record in caplog.records] == [
        "rank 2 of 3, for 10 s: loading",
        "rank 1 of 3, for 10 s: profile",
        "rank 2 of 3, for 20 s: loading",
        "rank 1 of 3, for 10 s: warm_up",
        "rank 2 of 3, for 30 s: loading",
    ]

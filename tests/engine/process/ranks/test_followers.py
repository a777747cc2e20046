"""What rank 0 does with followers that answer, fail, die, hang or say nothing. They have no model."""

from __future__ import annotations

import os
import queue
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from seesay.engine.process.launch import ChildProcess
from seesay.engine.process.ranks.executor import LocalExecutor
from seesay.engine.process.ranks.followers import MEETINGS, Followers
from seesay.engine.process.ranks.rank_messages import Follow
from seesay.engine.process.ranks.waits import PATIENCE_S, Waits
from seesay.errors import ConfigError, SeesayError

pytestmark = pytest.mark.timeout(120)
Start = Callable[..., Followers]


@pytest.fixture
def lost() -> queue.SimpleQueue[Exception]:
    """Why the model was lost."""
    return queue.SimpleQueue()


@pytest.fixture
def start(lost: queue.SimpleQueue[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    started: list[Followers] = []

    def start(does: str, size: int = 2, **engine: Any) -> Followers:
        follow = Follow("", {"does": does, **engine}, 0, 20, 1.0)
        started.append(Followers(follow, size, lose=lost.put, executor=LocalExecutor(size, "odd_rank")))
        if does == "answers":
            started[-1].wait_for_answers()
        return started[-1]

    yield start
    for followers in started:
        followers.close()
    assert not list(tmp_path.iterdir())
    assert lost.empty()


def test_all_do_what_is_called_and_answer(start: Start) -> None:
    followers = start("answers", 3)
    own, others = followers.call("count", lambda: "own", {"number": 7})
    assert own == "own" and others == [["count", 1, {"number": 7}], ["count", 2, {"number": 7}]]


def test_within_a_call_nothing_else_is_called(start: Start) -> None:
    """The followers do it as a part of theirs."""
    followers = start("answers")
    own, others = followers.call("outer", lambda: followers.call("inner", lambda: 1, {}), {})
    assert own == (1, []) and others == [["outer", 1, {}]]
    assert followers.call("next", lambda: 2, {}) == (2, [["next", 1, {}]])


def test_an_error_of_a_call_is_raised_once_all_are_done(start: Start) -> None:
    followers = start("answers", 3)
    done: list[int] = []
    with pytest.raises(MemoryError, match="rank 1 of 3: full"):
        followers.call("fails", lambda: done.append(1), {})
    assert done

    def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        followers.call("fails", fail, {})
    assert followers.call("next", lambda: 0, {})[1] == [["next", 1, {}], ["next", 2, {}]], "no answer is left over"


def test_in_a_meeting_nobody_waits_for_those_who_wait(start: Start) -> None:
    followers = start("is silent")
    name = next(iter(MEETINGS))

    def fail() -> None:
        assert followers._waits.find(1) == name, "what it was told is what it does"
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        followers.call(name, fail, {})


@pytest.mark.parametrize(
    ("does", "kind", "words"),
    [
        ("fails", ConfigError, "rank 1 of 2: no room"),
        ("dies", SeesayError, "rank 1 of 2 died (status 3)"),
        ("is busy", SeesayError, "rank 1 of 2: a step of the engine hangs: it has taken 99 s"),
        ("is silent", SeesayError, "rank 1 of 2 hangs: it has said nothing for"),
    ],
)
def test_what_ends_the_model(
    start: Start, lost: queue.SimpleQueue[Exception], does: str, kind: type[Exception], words: str
) -> None:
    start(does).watch_steps(30.0, 1.0)
    error = lost.get(timeout=60)
    assert type(error) is kind and words in str(error)


def test_a_process_that_never_speaks_hangs(
    lost: queue.SimpleQueue[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before it could send beats: nobody would ever know."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    executor = LocalExecutor(2, "mute_rank")
    followers = Followers(Follow("", {}, 0, 20, 1.0), 2, lose=lost.put, executor=executor, first_word_s=1.0)
    try:
        assert "rank 1 of 2 hangs: it has said nothing for" in str(lost.get(timeout=60))
    finally:
        followers.close()


def test_what_ranks_do_is_logged_where_it_takes_long(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    waits = Waits(4, clock=lambda: now_s)
    waits.begin(1, "starting its process")
    waits.begin(2, "opening the model")
    with caplog.at_level("INFO", "seesay"):
        waits.log_long()
        now_s += PATIENCE_S - 1
        waits.begin(2, "loading its slice")
        waits.begin(3, "profile")
        waits.end(3)
        now_s += 1
        for _ in range(3):
            waits.log_long()
        now_s += PATIENCE_S
        waits.log_long()
    assert [record.getMessage() for record in caplog.records] == [
        "rank 1 of 4, for 10 s: starting its process",
        "rank 1 of 4, for 20 s: starting its process",
        "rank 2 of 4, for 11 s: loading its slice",
    ]


def test_what_a_rank_does_is_known_until_it_has_done_it(start: Start) -> None:
    followers = start("is slow")
    wait_until(lambda: followers._waits.find(1) == "loading", "the rank says what it does")
    assert start("answers")._waits.find(1) is None, "it has answered"


def test_a_load_takes_as_long_as_it_takes(start: Start, lost: queue.SimpleQueue[Exception]) -> None:
    """Only from `watch_steps` on is a rank judged by its step."""
    followers = start("is busy")
    with pytest.raises(queue.Empty):
        lost.get(timeout=1.5)
    followers.watch_steps(100.0, 30.0)
    with pytest.raises(queue.Empty):
        lost.get(timeout=0.5)


def test_the_second_rank_is_named(start: Start, lost: queue.SimpleQueue[Exception]) -> None:
    start("dies", 4, rank=2)
    assert "rank 2 of 4 died" in str(lost.get(timeout=60))


def test_a_failed_step_ends_the_model_for_its_cause(start: Start, lost: queue.SimpleQueue[Exception]) -> None:
    """A rank that has died is the cause of what fails here."""
    followers = start("answers")
    assert followers.call("count", lambda: 0, {})
    followers.give_up(ValueError("a bug"))
    assert "rank 0 of 2 failed in a step: ValueError: a bug" in str(lost.get(timeout=10))


def test_a_dead_rank_is_the_cause(start: Start, lost: queue.SimpleQueue[Exception]) -> None:
    followers = start("answers")
    followers.call("count", lambda: 0, {})
    [child] = followers._children.values()
    assert isinstance(child, ChildProcess)
    os.kill(child.pid, signal.SIGKILL)
    waiting = threading.Thread(target=followers.give_up, args=(RuntimeError("connection closed by peer"),))
    waiting.start()
    assert "rank 1 of 2 died (signal 9)" in str(lost.get(timeout=60))
    waiting.join(60)
    assert not waiting.is_alive()

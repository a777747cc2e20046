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
from link_pair import read_next
from scripted_ranks import ScriptedExecutor, ScriptedRank
from waiting import wait_until

from seesay.engine.process import kinds
from seesay.engine.process.failures import describe_failure
from seesay.engine.process.launch import ChildProcess
from seesay.engine.process.ranks import followers as module
from seesay.engine.process.ranks import rank_messages
from seesay.engine.process.ranks.executor import LocalExecutor
from seesay.engine.process.ranks.followers import MEETINGS, Answers, Followers
from seesay.engine.process.ranks.rank_messages import Follow
from seesay.engine.process.ranks.waits import PATIENCE_S, Waits
from seesay.errors import ConfigError, SeesayError
from seesay.system.liveness import Silence

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


# --- ranks without processes ------------------------------------------------------------------------------------------


class Scripted:
    """Two ranks that follow. `now_s` is the time of what is said and not said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lose: Callable[[Exception], None]) -> None:
        self.now_s, self._num_heard = 100.0, 0
        monkeypatch.setattr(module, "Silence", lambda limit_s: Silence(limit_s, lambda: self.now_s))
        self.executor = ScriptedExecutor()
        self.followers = Followers(Follow("a", {"b": 1}, 0, 20, 1.0), 3, lose=lose, executor=self.executor)
        self.ranks: dict[int, ScriptedRank] = self.executor.ranks

    def say(self, rank: int, *messages: Any) -> None:
        """Let a rank say something, which is heard then."""
        self._num_heard += 1
        name = f"thing {self._num_heard}"
        for message in (*messages, rank_messages.Doing(name)):
            self.ranks[rank].far.send(message)
        followers = self.followers
        wait_until(lambda: followers._waits.find(rank) == name or followers._is_lost.is_set(), "it is heard")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, lost: queue.SimpleQueue[Exception], tmp_path: Path) -> Iterator[Scripted]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scripted = Scripted(monkeypatch, lost.put)
    yield scripted
    if "close" not in scripted.executor.done:
        scripted.followers.close()
    assert lost.empty(), "the model is lost once"


def test_each_rank_is_told_what_to_load(scripted: Scripted) -> None:
    """Until it says more, it is known that its process is being started."""
    assert [scripted.followers._waits.find(rank) for rank in (1, 2)] == ["starting its process"] * 2
    for rank in (2, 1):
        scripted.say(rank, kinds.Hello())
        assert read_next(scripted.ranks[rank].far) == Follow("a", {"b": 1}, rank, 20, 1.0)


def test_what_ranks_log_says_who_they_are(scripted: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    scripted.say(2, kinds.LogRecord("seesay.part", 30, "100 % of %s"))
    assert [(each.name, each.levelno, each.getMessage()) for each in caplog.records] == [
        ("seesay.part", 30, "rank 2: 100 % of %s")
    ]


def test_all_are_told_to_end_and_waited_for(scripted: Scripted) -> None:
    scripted.executor.on_end = lambda rank: told.append(read_next(scripted.ranks[rank].far))
    told: list[Any] = []
    scripted.followers.close()
    assert told == [rank_messages.Stop()] * 2
    assert scripted.executor.done == [("end", 1, 5.0), ("end", 2, 5.0), "close"]


def raise_it(error: Exception) -> None:
    raise error


def test_a_rank_that_cannot_be_started_leaves_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    executor = ScriptedExecutor(fails=3)
    with pytest.raises(OSError, match="no more processes"):
        Followers(Follow("", {}, 0, 20, 1.0), 4, lose=raise_it, executor=executor)
    assert executor.done == [("end", 1, 0.0), ("end", 2, 0.0), "close"]


@pytest.mark.parametrize("rank", [1, 2])
def test_a_rank_hangs_that_beats_no_more(scripted: Scripted, lost: queue.SimpleQueue[Exception], rank: int) -> None:
    """What else it says is said by another thread."""
    for each in (1, 2):
        scripted.say(each, kinds.Hello())
    scripted.followers.watch_steps(100.0, 3.5)
    for _ in range(6):
        for each in (1, 2):
            scripted.say(each, rank_messages.Beat(50.0))
        scripted.now_s += 1
    assert lost.empty()
    for _ in range(5):
        scripted.say(3 - rank, rank_messages.Beat(50.0))
        scripted.now_s += 1
    assert f"rank {rank} of 3 hangs: it has said nothing for 4 s" in str(lost.get(timeout=60))


def test_a_rank_that_has_said_hello_once_is_to_beat(scripted: Scripted, lost: queue.SimpleQueue[Exception]) -> None:
    scripted.followers.watch_steps(100.0, 3.5)
    scripted.say(1, kinds.Hello())
    for _ in range(5):
        scripted.now_s += 1
        scripted.say(2)
    assert "rank 1 of 3 hangs" in str(lost.get(timeout=60))


def test_all_are_killed_when_one_dies(scripted: Scripted, lost: queue.SimpleQueue[Exception]) -> None:
    """Also one that is stopped, and would never end by itself."""
    scripted.ranks[2].find_end = lambda: "signal 9"
    assert "rank 2 of 3 died (signal 9)" in str(lost.get(timeout=60))
    assert scripted.executor.done == [("kill", 1), ("kill", 2)]


def test_the_last_words_of_a_rank_say_why_it_ended(scripted: Scripted, lost: queue.SimpleQueue[Exception]) -> None:
    def end() -> str:
        if not said:
            said.append(threading.Timer(0.05, far.send, (describe_failure(ConfigError("no room")),)))
            said[0].start()
        return "status 1"

    said: list[threading.Timer] = []
    far = scripted.ranks[1].far
    scripted.ranks[1].find_end = end
    error = lost.get(timeout=60)
    assert isinstance(error, ConfigError) and str(error) == "rank 1 of 3: no room"
    said[0].join()


def test_what_cannot_be_read_ends_the_model(scripted: Scripted, lost: queue.SimpleQueue[Exception]) -> None:
    scripted.ranks[1].far._outgoing.send(b"\xc1")
    assert isinstance(lost.get(timeout=60), ValueError)


def test_ranks_that_end_with_the_engine_are_not_missed(scripted: Scripted) -> None:
    """Those whose end is seen while they are being ended."""
    closing = threading.Thread(target=scripted.followers.close)

    def end() -> str:
        if not closing.ident:
            closing.start()
            wait_until(lambda: scripted.followers._is_closed)
        return "status 0"

    scripted.ranks[1].find_end = end
    wait_until(lambda: bool(closing.ident))
    closing.join(60)
    assert scripted.executor.done[-1] == "close" and ("kill", 1) not in scripted.executor.done


def test_a_rank_that_is_gone_is_told_nothing(scripted: Scripted) -> None:
    """And the others all the same."""
    scripted.ranks[1].link.close = lambda *, delivers=False: None  # type: ignore[method-assign]
    scripted.ranks[1].link._writer.close()
    scripted.followers.tell(rank_messages.Call("count", {"number": 3}))
    assert read_next(scripted.ranks[2].far) == rank_messages.Call("count", {"number": 3})
    del scripted.ranks[1].link.close


def test_a_step_that_failed_does_not_go_on_while_the_process_ends(
    monkeypatch: pytest.MonkeyPatch, lost: queue.SimpleQueue[Exception], tmp_path: Path
) -> None:
    """For whatever it would do next is wrong."""
    may_end = threading.Event()

    def lose(error: Exception) -> None:
        lost.put(error)
        may_end.wait(60)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scripted = Scripted(monkeypatch, lose)
    scripted.ranks[1].find_end = lambda: "signal 9"
    assert "rank 1 of 3 died" in str(lost.get(timeout=60))
    step = threading.Thread(target=scripted.followers.give_up, args=(ValueError("closed by peer"),))
    step.start()
    step.join(0.3)
    assert step.is_alive() and lost.empty()
    may_end.set()
    step.join(60)
    assert not step.is_alive()
    scripted.followers.close()


def test_any_rank_may_be_the_first_to_fail() -> None:
    for ranks in ((1, 2), (2, 1)):
        answers = Answers(3)
        for rank in ranks:
            failure = describe_failure(MemoryError("full")) if rank == 2 else None
            answers.put(rank, rank_messages.Answer(rank, failure))
        with pytest.raises(MemoryError, match="rank 2 of 3: full"):
            answers.wait()
        for rank in ranks:
            answers.put(rank, rank_messages.Answer(rank, None))
        assert answers.wait() == [1, 2]

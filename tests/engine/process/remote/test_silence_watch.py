"""A process that says nothing: when that is reported, and when the process is to be killed."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from scripted_process import FACTS, ScriptedChild, ScriptedOrigin
from waiting import wait_until

from seesay.engine.commands import ModelStatus
from seesay.engine.process.remote.silence_watch import SilenceWatch, choose_beat_s
from seesay.engine.process.remote.state import ProcessState
from seesay.engine.watchdog import ENGINE, Fault
from seesay.system.liveness import LIMIT_S, SUSPECT_S, is_stopped


class Parts:
    """A watch of a process that takes requests, looked at each second. `now_s` is its clock."""

    def __init__(self, *, is_owner: bool = True, step_timeout_s: float | None = None, pid: int | None = None) -> None:
        self.now_s = 100.0
        self.state: Any = ProcessState(ScriptedOrigin(is_owner=is_owner))
        child: Any = ScriptedChild(pid=pid)
        self.child = child
        self.watch = SilenceWatch(
            self.state, is_owner=is_owner, step_timeout_s=step_timeout_s, clock=lambda: self.now_s
        )

    def load(self) -> None:
        self.state.note_start(self.child, FACTS, ModelStatus())

    def look(self, passed_s: float) -> str | None:
        self.now_s += passed_s
        error = self.watch.find_hung(self.child)
        return None if error is None else str(error)

    def count_looks(self) -> int:
        """How many seconds it may say nothing."""
        for number in range(200):
            if self.look(1.0) is not None:
                return number
        raise AssertionError("it may be silent for ever")


@pytest.mark.parametrize(
    ("step_timeout_s", "beat_s"), [(None, 1.0), (100.0, 1.0), (4.0, 1.0), (2.0, 0.5), (0.1, 0.025)]
)
def test_a_process_says_often_enough_that_it_lives(step_timeout_s: float | None, beat_s: float) -> None:
    assert choose_beat_s(step_timeout_s) == beat_s


@pytest.mark.parametrize(
    ("step_timeout_s", "limit_s"),
    [(None, LIMIT_S), (1000.0, LIMIT_S), (28.0, LIMIT_S), (27.0, 29.0), (8.0, 10.0), (2.0, 3.0)],
)
def test_a_silent_process_is_killed(step_timeout_s: float | None, limit_s: float) -> None:
    """The owner of a process ends it first."""
    for is_owner, more_s in ((True, 0.0), (False, 5.0)):
        parts = Parts(is_owner=is_owner, step_timeout_s=step_timeout_s)
        parts.load()
        assert parts.count_looks() == limit_s + more_s


def test_silence_is_reported_until_the_process_is_heard() -> None:
    parts = Parts()
    parts.load()
    for _ in range(int(SUSPECT_S)):
        assert parts.look(1.0) is None and parts.state.silence is None
    assert parts.look(0.5) is None
    assert parts.state.silence == Fault(ENGINE, "the engine process has said nothing for 4 s")
    parts.look(1.0)
    assert parts.state.silence == Fault(ENGINE, "the engine process has said nothing for 6 s")
    parts.watch.hear()
    assert parts.state.silence is None
    assert parts.look(1.0) is None and parts.state.silence is None


def test_it_says_for_how_long() -> None:
    parts = Parts()
    parts.load()
    for _ in range(int(LIMIT_S)):
        assert parts.look(1.0) is None
    error = parts.watch.find_hung(parts.child)
    assert error is None
    parts.now_s += 1
    error = parts.watch.find_hung(parts.child)
    assert error is not None and error.fault == Fault(ENGINE, "it has said nothing for 31 s")


def test_the_watch_begins_when_it_is_made() -> None:
    """Before the first message, too."""
    parts = Parts()
    parts.load()
    assert parts.look(0.0) is None and parts.count_looks() == LIMIT_S


def test_a_process_that_loads_may_be_silent() -> None:
    parts = Parts()
    for _ in range(100):
        assert parts.look(1.0) is None and parts.state.silence is None
    parts.load()
    assert parts.count_looks() == LIMIT_S - 1, "only the time since the last look counts"


@pytest.fixture
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_one_that_was_stopped_while_it_loads_is_killed(sleeping: subprocess.Popen[bytes]) -> None:
    parts = Parts(pid=sleeping.pid)
    for _ in range(50):
        assert parts.look(1.0) is None
    sleeping.send_signal(signal.SIGSTOP)
    wait_until(lambda: is_stopped(sleeping.pid))
    assert parts.count_looks() == LIMIT_S - 1

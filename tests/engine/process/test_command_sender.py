"""Commands for a process that may not be there yet, may end, and may fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from seesay.engine.commands import ModelStatus, ResetCaches, Sleep, WakeUp
from seesay.engine.process import kinds
from seesay.engine.process.failures import describe_failure
from seesay.engine.process.remote.command_sender import CommandSender
from seesay.engine.process.remote.state import ProcessState
from seesay.errors import RequestError

NEWS = kinds.News((), (), None)
Answer = Callable[[kinds.Do], object]


class Child:
    """A process whose answers are those of `answer`. `link` is itself."""

    def __init__(self, answer: Answer) -> None:
        self.link = self
        self.commands: list[str] = []
        self._answer = answer

    def send(self, message: kinds.Do, done: Any) -> None:
        self.commands.append(message.name)
        self._answer(message)


class Parts:
    """A sender of commands with its state. This process is the owner of the other one."""

    is_owner = True

    def __init__(self) -> None:
        origin: Any = self
        waker: Any = self
        self.num_wakes = 0
        self.state = ProcessState(origin)
        self.sender = CommandSender(self.state, origin, waker)

    def wake(self) -> None:
        self.num_wakes += 1

    def die(self) -> None:
        self.state.note_end(RuntimeError("it died"))

    def start(self, answer: Answer | None = None) -> Child:
        """Let there be a process, which does what it is told by default."""
        child = Child(answer or (lambda do: self.sender.take(kinds.Done(do.number, None, None, NEWS))))
        facts: Any = object()
        self.state.note_start(child, facts, ModelStatus())  # type: ignore[arg-type]
        return child


def test_a_process_does_what_it_is_told() -> None:
    parts = Parts()
    child = parts.start()
    parts.sender.run(ResetCaches())
    parts.sender.run(Sleep(level=1))
    assert child.commands == ["ResetCaches", "Sleep"]


def test_without_a_process_there_are_no_caches_and_the_rest_waits_for_one() -> None:
    parts = Parts()
    parts.sender.run(ResetCaches())
    children: list[Child] = []
    starting = threading.Timer(0.05, lambda: children.append(parts.start()))
    starting.start()
    parts.sender.run(Sleep(level=1))
    starting.join()
    assert children[0].commands == ["Sleep"]


def test_what_the_process_raises_is_raised_here() -> None:
    parts = Parts()

    def fail(do: kinds.Do) -> None:
        parts.sender.take(kinds.Done(do.number, None, describe_failure(ValueError("no such level")), NEWS))

    parts.start(fail)
    with pytest.raises(ValueError, match="no such level"):
        parts.sender.run(Sleep(level=1))


def test_a_command_is_lost_with_its_process() -> None:
    """Its caches are lost in any case."""
    parts = Parts()
    parts.start(lambda do: parts.die())
    with pytest.raises(RequestError, match="the engine process died before Sleep was done"):
        parts.sender.run(Sleep(level=1))
    parts.start(lambda do: parts.die())
    parts.sender.run(ResetCaches())


def test_the_next_process_is_awake() -> None:
    parts = Parts()
    first = parts.start(lambda do: parts.die())
    starting = threading.Timer(0.05, parts.start)
    starting.start()
    parts.sender.run(WakeUp())
    starting.join()
    assert first.commands == ["WakeUp"]


def test_parts_of_a_process_that_died_asleep_wake_up_one_by_one() -> None:
    parts = Parts()
    parts.start()
    parts.state.status = ModelStatus(asleep=("weights", "kv_cache"))
    parts.die()
    with pytest.raises(RequestError, match="died while it slept"):
        parts.sender.run(Sleep(level=1))
    parts.sender.run(WakeUp(tags=("weights",)))
    assert parts.state.status.asleep == ("kv_cache",) and parts.num_wakes == 1


def test_a_closed_core_does_nothing() -> None:
    parts = Parts()
    parts.state.note_close()
    with pytest.raises(RequestError, match="the engine is closed"):
        parts.sender.run(Sleep(level=1))

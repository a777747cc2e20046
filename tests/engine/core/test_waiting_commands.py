"""Commands that wait until no request is alive."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from seesay.engine.commands import Command, Sleep, UpdateWeights, WakeUp
from seesay.engine.core.waiting_commands import WaitingCommands
from seesay.errors import CheckpointError, ErrorCode, RequestError

COMMANDS: tuple[Command, ...] = (Sleep(), UpdateWeights(folder="a"), WakeUp())


def wait_with(*commands: Command) -> tuple[WaitingCommands, list[Future[None]]]:
    waiting, ends = WaitingCommands(), [Future[None]() for _ in commands]
    for command, done in zip(commands, ends, strict=True):
        waiting.add(command, done)
    return waiting, ends


class Control:
    """Notes what it did; fails for an update."""

    def __init__(self) -> None:
        self.done: list[Command] = []

    def run(self, command: Command) -> None:
        self.done.append(command)
        if isinstance(command, UpdateWeights):
            raise CheckpointError("other sizes")


def test_all_are_done_in_their_order_and_each_is_told() -> None:
    waiting, ends = wait_with(*COMMANDS)
    assert waiting and not any(done.done() for done in ends)
    control: Any = Control()
    waiting.run(control)
    assert tuple(control.done) == COMMANDS and not waiting
    assert [done.exception(0) is None for done in ends] == [True, False, True]
    with pytest.raises(CheckpointError, match="other sizes"):
        ends[1].result(0)
    waiting.run(control)
    assert len(control.done) == 3, "none is done again"


def test_one_that_comes_meanwhile_is_done_too() -> None:
    waiting, _ = wait_with(Sleep())
    later: Future[None] = Future()
    seen: list[Command] = []

    def run(command: Command) -> None:
        if not seen:
            waiting.add(WakeUp(), later)
        seen.append(command)

    control: Any = SimpleNamespace(run=run)
    waiting.run(control)
    assert seen == [Sleep(), WakeUp()] and later.done() and not waiting


def test_without_a_control_each_fails() -> None:
    waiting, ends = wait_with(*COMMANDS)
    waiting.run(None)
    for done in ends:
        error = done.exception(0)
        assert isinstance(error, RequestError) and error.code is ErrorCode.INVALID_REQUEST
        assert "own_process=True" in str(error)
    assert not waiting


def test_one_is_dropped_alone() -> None:
    waiting, ends = wait_with(*COMMANDS)
    waiting.drop(ends[1])
    control: Any = Control()
    waiting.run(control)
    assert control.done == [Sleep(), WakeUp()] and not ends[1].done()


def test_all_end_with_the_engine() -> None:
    waiting, ends = wait_with(*COMMANDS)
    closed = RequestError(ErrorCode.CLOSED, "closed")
    waiting.fail(closed)
    assert not waiting and [done.exception(0) for done in ends] == [closed] * 3

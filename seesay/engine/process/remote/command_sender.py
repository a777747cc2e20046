"""Commands on their way to an engine process, and its answers."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from functools import partial

from seesay.engine.commands import Command, ResetCaches, WakeUp
from seesay.engine.process import kinds
from seesay.engine.process.failures import describe_failure, make_lost_error, restore_failure
from seesay.engine.process.link import LinkClosedError
from seesay.engine.process.origin import Child, Origin
from seesay.engine.process.remote.state import ProcessState
from seesay.engine.process.waker import Waker

_POLL_S = 0.5
_DIED_ASLEEP = "the engine process died while it slept, wake_up() starts it again"


class CommandSender:
    """Has the process of `state` do commands, and waits for its answers, in the threads that ask for them. `waker`
    wakes up the thread that starts the process."""

    def __init__(self, state: ProcessState, origin: Origin, waker: Waker) -> None:
        self._state = state
        self._origin = origin
        self._waker = waker
        self._done: dict[int, kinds.Done] = {}  # by the number of the command
        self._numbers = itertools.count(1)

    def run(self, command: Command) -> None:
        """Have the process do it, and wait until it is done. A process that is being started is waited for."""
        if self._state.child is None and isinstance(command, ResetCaches):
            return  # it has no caches
        while (child := self._wait_for_child(command)) is not None:
            done = self._ask(child, command)
            if done is None and isinstance(command, WakeUp):
                self._wait_for_end(child)  # it was dead already, or died now: the next one is awake
                continue
            if done is not None:
                _raise_failure(done)
            elif not isinstance(command, ResetCaches):
                raise make_lost_error(f"the engine process died before {type(command).__name__} was done")
            return

    def take(self, done: kinds.Done) -> None:
        """Take an answer, for the thread that waits for it."""
        with self._state.changed:
            self._done[done.number] = done
            self._state.changed.notify_all()

    def _wait_for_child(self, command: Command) -> Child | None:
        """Return the process that is to do a command, once there is one. None for a command that is done without: a
        part wakes up of an engine whose process died asleep, while another part still sleeps."""
        state = self._state
        while True:
            if not self._origin.is_owner and state.child is None and state.confirm_status().asleep:
                raise make_lost_error(_DIED_ASLEEP)
            with state.changed:
                if state.sleeps_without_process and self._wake_up(command):
                    return None
                if state.changed.wait_for(lambda: state.child or state.failure or state.is_over, _POLL_S):
                    if state.child is None:
                        raise make_lost_error(str(state.failure or "the engine is closed"))
                    return state.child

    def _wake_up(self, command: Command) -> bool:
        """Have a process started for parts that wake up. Returns whether others still sleep, so that none is."""
        if not isinstance(command, WakeUp):
            raise make_lost_error(_DIED_ASLEEP)
        status = self._state.status
        asleep = tuple(part for part in status.asleep if part not in command.tags)
        self._state.status = replace(status, asleep=asleep)
        self._waker.wake()
        return bool(asleep)

    def _wait_for_end(self, child: Child) -> None:
        """Wait until it is known that a process has ended."""
        with self._state.changed:
            self._state.changed.wait_for(lambda: self._state.child is not child)

    def _ask(self, child: Child, command: Command) -> kinds.Done | None:
        """Return a process's answer to a command; None if it has ended."""
        number = next(self._numbers)
        with contextlib.suppress(LinkClosedError):
            child.link.send(kinds.Do.of(number, command), partial(self._note_sent, number))
            with self._state.changed:
                self._state.changed.wait_for(lambda: number in self._done or self._state.child is not child)
                return self._done.pop(number, None)
        return None

    def _note_sent(self, number: int, error: OSError | None) -> None:
        """A command was sent, or there was no memory for its arrays."""
        if error is not None:
            self.take(kinds.Done(number, None, describe_failure(error), kinds.News((), (), None)))


def _raise_failure(done: kinds.Done) -> None:
    """Raise what the process raised, if it did."""
    if done.failure is not None:
        raise done.failure.restore()
    if done.raised is not None:
        raise restore_failure(done.raised)

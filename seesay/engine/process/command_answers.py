"""Commands on their way to an engine process, and its answers."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable

from seesay.engine.commands import Command
from seesay.engine.process import kinds
from seesay.engine.process.link import LinkClosedError
from seesay.engine.process.origin import Child


class CommandAnswers:
    """Sends commands and waits for their answers. `changed` guards it, and is notified when a process has ended."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._done: dict[int, kinds.Done] = {}  # by the number of the command
        self._numbers = itertools.count(1)

    def ask(self, child: Child, command: Command, is_alive: Callable[[], bool]) -> kinds.Done | None:
        """Return a process's answer to a command; None if it has ended."""
        number = next(self._numbers)
        with contextlib.suppress(LinkClosedError):
            child.link.send(kinds.Do.of(number, command))
            with self._changed:
                self._changed.wait_for(lambda: number in self._done or not is_alive())
                return self._done.pop(number, None)
        return None

    def take(self, done: kinds.Done) -> None:
        """Take an answer, for the thread that waits for it."""
        with self._changed:
            self._done[done.number] = done
            self._changed.notify_all()

"""Commands that wait until no request is alive, and the requests that came behind them. Used by the loop's thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from seesay.engine.commands import Command
from seesay.engine.live_request import LiveRequest
from seesay.errors import RequestError


class WaitingCommands:
    """In the order in which they came. `held` are the requests that wait for them, by id."""

    def __init__(self) -> None:
        self.held: dict[int, LiveRequest] = {}
        self._waiting: list[tuple[Command, Future[None]]] = []

    def __bool__(self) -> bool:
        """Whether there are any: requests that come now are held."""
        return bool(self._waiting)

    def add(self, command: Command, done: Future[None]) -> None:
        """Take a command; `done` tells of its end."""
        self._waiting.append((command, done))

    def run(self, run: Callable[[Command], None]) -> list[LiveRequest]:
        """Run all commands. Returns the requests that were held."""
        while self._waiting:
            command, done = self._waiting.pop(0)
            try:
                run(command)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)
        held, self.held = self.held, {}
        return list(held.values())

    def fail(self, error: RequestError) -> None:
        """End all commands with an error."""
        waiting, self._waiting = self._waiting, []
        for _, done in waiting:
            done.set_exception(error)

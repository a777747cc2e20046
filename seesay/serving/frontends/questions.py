"""Questions of a frontend process to the supervisor, which started it, and their answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from seesay.engine.process.kinds import Do
from seesay.engine.process.link import Link, LinkClosedError
from seesay.serving.errors import ApiError
from seesay.serving.frontends import state_messages as messages

FrontLink = Link[messages.ToSupervisor, messages.ToFrontend]
Make = Callable[[int], messages.Asked | Do]
"""Makes the question with a number."""


class Questions:
    """The questions that wait for their answers, by number. Thread-safe."""

    def __init__(self, link: FrontLink) -> None:
        self._link = link
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}

    def number(self) -> int:
        """Return the number of the next question."""
        return next(self._numbers)

    async def ask(self, make: Make, number: int | None = None) -> Any:
        """Ask, and return the answer. Raises the `ApiError` that is the answer."""
        number = self.number() if number is None else number
        future = self._waiting[number] = Future[Any]()
        try:
            self.tell(make(number))
            answer = await asyncio.wrap_future(future)
        finally:
            self._waiting.pop(number, None)
        if isinstance(answer, messages.Refused):
            raise answer.restore()
        return answer

    def wait(self, make: Make, timeout_s: float) -> Any | None:
        """Ask from a thread that may wait, and return the answer. None when no answer comes."""
        number = self.number()
        future = self._waiting[number] = Future[Any]()
        try:
            self._link.send(make(number))
            return future.result(timeout_s)
        except (LinkClosedError, TimeoutError):
            return None
        finally:
            self._waiting.pop(number, None)

    def tell(self, message: messages.ToSupervisor) -> None:
        """Send a message. Raises `ApiError` 503 where the supervisor has ended."""
        try:
            self._link.send(message)
        except LinkClosedError:  # and so will this process
            raise ApiError(503, "the server is shutting down", kind="server_error", code="shutting_down") from None

    def take(self, number: int, answer: object) -> None:
        """Take the answer to a question, for which nobody may wait any more."""
        future = self._waiting.get(number)
        if future is not None and future.set_running_or_notify_cancel():
            future.set_result(answer)

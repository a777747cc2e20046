"""The shared state as a frontend process sees it: asks the process that started this one, and answers what that
asks."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from seesay.engine.process.kinds import Do
from seesay.engine.process.link import Link, LinkClosedError
from seesay.engine.process.waker import Waker
from seesay.errors import SeesayError
from seesay.serving.errors import ApiError
from seesay.serving.frontends import state_messages as messages
from seesay.serving.frontends.remote_responses import RemoteResponses
from seesay.serving.stored.sessions import Conversation, SessionKey
from seesay.serving.stored.shared_responses import SharedResponses
from seesay.serving.stored.shared_state import SessionTurn
from seesay.serving.traffic.metric_sums import Family

if TYPE_CHECKING:
    from seesay.engine.commands import Command, ModelStatus
    from seesay.engine.front.engine import AsyncEngine
    from seesay.serving.requests.submission import Answering
    from seesay.serving.traffic.metrics import ServerMetrics

logger = logging.getLogger("seesay")

FrontLink = Link[messages.ToSupervisor, messages.ToFrontend]

STATUS_S = 10.0
"""A supervisor that does not answer for so long is not waited for."""
REPORT_S = 1.0
"""How often the figures are reported: those of a frontend that is killed lack no more than its last second."""


class StateClient:
    """A `SharedState` in another process. A thread takes its messages; the methods are of one event loop."""

    def __init__(
        self, link: FrontLink, engine: AsyncEngine, metrics: ServerMetrics, answering: Answering, *, created: int
    ) -> None:
        self.created = created
        self.num_frontends_up = 1
        self.responses: SharedResponses = RemoteResponses(self._ask)
        self._link = link
        self._engine = engine
        self._metrics = metrics
        self._answering = answering
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}  # by the number of the question
        self._turns: dict[int, Callable[[], object]] = {}  # cancels a running turn, by the number of its question
        self._is_closed = False
        self._waker = Waker()
        self._thread = threading.Thread(target=self._hear, name="seesay-shared-state", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Report the last figures, and take no more messages."""
        self._is_closed = True
        self._waker.wake()
        self._thread.join()
        self._waker.close()
        with contextlib.suppress(LinkClosedError):
            self._report()

    # --- questions ----------------------------------------------------------------------------------------------------

    async def _ask(self, make: Callable[[int], messages.Asked | Do], number: int | None = None) -> Any:
        """Ask, and return the answer. Raises the `ApiError` that is the answer."""
        number = next(self._numbers) if number is None else number
        future = self._waiting[number] = Future[Any]()
        try:
            self._tell(make(number))
            answer = await asyncio.wrap_future(future)
        finally:
            self._waiting.pop(number, None)
        if isinstance(answer, messages.Refused):
            raise answer.restore()
        return answer

    def _tell(self, message: messages.ToSupervisor) -> None:
        try:
            self._link.send(message)
        except LinkClosedError:  # the supervisor has ended, and so will this process
            raise ApiError(503, "the server is shutting down", kind="server_error", code="shutting_down") from None

    @asynccontextmanager
    async def turn(self, key: SessionKey) -> AsyncIterator[SessionTurn]:
        number, loop, cancelled = next(self._numbers), asyncio.get_running_loop(), asyncio.Event()
        self._turns[number] = lambda: loop.call_soon_threadsafe(cancelled.set)
        turn: _RemoteTurn | None = None
        try:
            begun = await self._ask(lambda question: messages.BeginTurn(question, key), number)
            turn = _RemoteTurn(self, number, begun.history.restore(), cancelled)
            yield turn
        finally:
            self._turns.pop(number, None)
            if turn is None or not turn.is_finished:  # also when the question was never answered
                self._tell(messages.EndTurn(next(self._numbers), number, None))

    async def end_turn(self, begun: int, conversation: Conversation) -> None:
        """Store what a turn has made of its conversation."""
        history = messages.History.of(conversation)
        await self._ask(lambda number: messages.EndTurn(number, begun, history))

    async def cancel_session(self, key: SessionKey) -> None:
        await self._ask(lambda number: messages.CancelSession(number, key))

    async def forget_session(self, key: SessionKey) -> None:
        await self._ask(lambda number: messages.ForgetSession(number, key))

    async def gather_figures(self, own: list[Family]) -> Sequence[Sequence[Family]]:
        answer = await self._ask(lambda number: messages.GatherFigures(number, own))
        figures: list[list[Family]] = answer.figures
        return figures

    async def abort(self, turn: Hashable, rid: str | None) -> int:
        asked = messages.Turn.of(turn)
        answer = await self._ask(lambda number: messages.AbortRequests(number, asked, rid))
        num: int = answer.num
        return num

    async def reset_caches(self) -> None:
        await self._ask(messages.ResetCaches)

    async def run_command(self, command: Command) -> ModelStatus:
        answer = await self._ask(lambda number: Do.of(number, command))
        status: ModelStatus = answer.status
        return status

    async def read_status(self) -> ModelStatus:
        answer = await self._ask(messages.ReadStatus)
        status: ModelStatus = answer.status
        return status

    def terminate(self) -> None:
        os.kill(os.getppid(), signal.SIGTERM)  # the supervisor, which started this process

    def wait_for_status(self) -> ModelStatus | None:
        """Return the status of the engine, from a thread that may wait. None when no answer comes."""
        number = next(self._numbers)
        future = self._waiting[number] = Future[Any]()
        try:
            self._link.send(messages.ReadStatus(number))
            status: ModelStatus = future.result(STATUS_S).status
        except (LinkClosedError, TimeoutError):
            return None
        finally:
            self._waiting.pop(number, None)
        return status

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        reported_at_s = time.monotonic()
        try:
            while not self._is_closed:
                due_s = reported_at_s + REPORT_S - time.monotonic()
                if due_s <= 0:
                    reported_at_s = time.monotonic()
                    self._report()
                elif self._link.wait(due_s, self._waker.fileno()):
                    self._take(self._link.receive())
        except LinkClosedError:
            return  # the supervisor has ended, and so will this process
        except Exception:
            logger.exception("the shared state of this frontend cannot be understood; the frontend ends")
            os.kill(os.getpid(), signal.SIGTERM)

    def _report(self, number: int | None = None) -> None:
        self._link.send(messages.Figures(self._metrics.read_frontend(), number))

    def _take(self, message: messages.ToFrontend) -> None:
        match message:
            case messages.CancelTurn(begun):
                self._turns.get(begun, lambda: None)()
            case messages.FrontsUp(num):
                self.num_frontends_up = num
            case messages.WantFigures(number):
                self._report(number)
            case messages.DoAbort(number, turn, rid):
                self._link.send(messages.RequestsAborted(number, self._answering.abort(turn.restore(), rid)))
            case messages.DoReset(number):
                threading.Thread(target=self._reset, args=(number,), name="seesay-reset", daemon=True).start()
            case messages.Start():
                raise TypeError("the frontend has been started already")
            case _:
                future = self._waiting.get(message.number)
                if future is not None and future.set_running_or_notify_cancel():
                    future.set_result(message)

    def _reset(self, number: int) -> None:
        try:
            self._engine.reset_caches()
        except SeesayError as error:  # closed
            logger.warning("the caches of a frontend were not reset: %s", error)
        with contextlib.suppress(LinkClosedError):
            self._link.send(messages.CachesReset(number))


class _RemoteTurn:
    def __init__(
        self, shared_state: StateClient, number: int, conversation: Conversation, cancelled: asyncio.Event
    ) -> None:
        self.conversation = conversation
        self.cancelled = cancelled
        self.is_finished = False
        self._shared_state = shared_state
        self._number = number

    async def finish(self, conversation: Conversation) -> None:
        await self._shared_state.end_turn(self._number, conversation)
        self.is_finished = True

"""The shared state as a frontend process sees it: asks the process that started this one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from seesay.engine.process.kinds import Do
from seesay.serving.frontends import state_messages as messages
from seesay.serving.frontends.questions import FrontLink, Questions
from seesay.serving.frontends.remote_responses import RemoteResponses
from seesay.serving.frontends.state_thread import StateThread
from seesay.serving.stored.sessions import Conversation, SessionKey
from seesay.serving.stored.shared_responses import SharedResponses
from seesay.serving.stored.shared_state import SessionTurn
from seesay.serving.traffic.metric_sums import Family

if TYPE_CHECKING:
    from seesay.engine.commands import Command, ModelStatus
    from seesay.engine.front.engine import AsyncEngine
    from seesay.serving.requests.submission import Answering
    from seesay.serving.traffic.metrics import ServerMetrics


class StateClient:
    """A `SharedState` in another process. The methods are of one event loop.

    questions: those that this frontend asks the other process.
    """

    def __init__(
        self, link: FrontLink, engine: AsyncEngine, metrics: ServerMetrics, answering: Answering, *, created: int
    ) -> None:
        self.created = created
        self.questions = Questions(link)
        self.responses: SharedResponses = RemoteResponses(self.questions.ask)
        self._thread = StateThread(link, self.questions, engine, metrics, answering)

    @property
    def num_frontends_up(self) -> int:
        """The processes that answer on the server's port, this one included."""
        return self._thread.num_frontends_up

    def close(self) -> None:
        """Report the last figures, and take no more messages."""
        self._thread.close()

    @asynccontextmanager
    async def turn(self, key: SessionKey) -> AsyncIterator[SessionTurn]:
        number, loop, cancelled = self.questions.number(), asyncio.get_running_loop(), asyncio.Event()
        self._thread.turns[number] = lambda: loop.call_soon_threadsafe(cancelled.set)
        turn: _RemoteTurn | None = None
        try:
            begun = await self.questions.ask(lambda question: messages.BeginTurn(question, key), number)
            turn = _RemoteTurn(self.questions, number, begun.history.restore(), cancelled)
            yield turn
        finally:
            self._thread.turns.pop(number, None)
            if turn is None or not turn.is_finished:  # also when the question was never answered
                self.questions.tell(messages.EndTurn(self.questions.number(), number, None))

    async def cancel_session(self, key: SessionKey) -> None:
        await self.questions.ask(lambda number: messages.CancelSession(number, key))

    async def forget_session(self, key: SessionKey) -> None:
        await self.questions.ask(lambda number: messages.ForgetSession(number, key))

    async def gather_figures(self, own: list[Family]) -> Sequence[Sequence[Family]]:
        answer = await self.questions.ask(lambda number: messages.GatherFigures(number, own))
        figures: list[list[Family]] = answer.figures
        return figures

    async def abort(self, turn: Hashable, rid: str | None) -> int:
        asked = messages.Turn.of(turn)
        answer = await self.questions.ask(lambda number: messages.AbortRequests(number, asked, rid))
        num: int = answer.num
        return num

    async def reset_caches(self) -> None:
        await self.questions.ask(messages.ResetCaches)

    async def run_command(self, command: Command) -> ModelStatus:
        answer = await self.questions.ask(lambda number: Do.of(number, command))
        status: ModelStatus = answer.status
        return status

    async def read_status(self) -> ModelStatus:
        answer = await self.questions.ask(messages.ReadStatus)
        status: ModelStatus = answer.status
        return status

    def terminate(self) -> None:
        os.kill(os.getppid(), signal.SIGTERM)  # the supervisor, which started this process


class _RemoteTurn:
    def __init__(self, questions: Questions, number: int, conversation: Conversation, cancelled: asyncio.Event) -> None:
        self.conversation = conversation
        self.cancelled = cancelled
        self.is_finished = False
        self._questions = questions
        self._number = number

    async def finish(self, conversation: Conversation) -> None:
        history = messages.History.of(conversation)
        await self._questions.ask(lambda number: messages.EndTurn(number, self._number, history))
        self.is_finished = True

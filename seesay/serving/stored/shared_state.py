"""The state that all frontends of a server share: stored responses, sessions, figures, the resetting of caches,
and what the operator asks of the engine.

A server of one process has a `LocalState`. With `--frontends`, each frontend asks the process that started it
(`frontends/state_client.py`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from seesay.serving.stored.sessions import Conversation, Session, SessionKey, SessionStore
from seesay.serving.stored.shared_responses import LocalResponses, SharedResponses
from seesay.serving.traffic.metric_sums import Family

if TYPE_CHECKING:
    from seesay.engine.commands import Command, ModelStatus
    from seesay.engine.front.engine import AsyncEngine


class SessionTurn(Protocol):
    """A turn of a stored conversation that is being answered."""

    conversation: Conversation
    cancelled: asyncio.Event
    """Set when the answer is to end."""

    async def finish(self, conversation: Conversation) -> None:
        """Store the conversation, and let its next turn begin."""
        ...


class SharedState(Protocol):
    """The state that the routes of a frontend share. All methods are called in one event loop."""

    created: int
    """The time at which the server was started."""
    responses: SharedResponses

    @property
    def num_frontends_up(self) -> int:
        """The processes that answer on the server's port, this one included."""
        ...

    def turn(self, key: SessionKey) -> AbstractAsyncContextManager[SessionTurn]:
        """Begin a turn of a session, which ends with the block. Raises `ApiError` as `SessionStore.begin`."""
        ...

    async def cancel_session(self, key: SessionKey) -> None:
        """End the running answer of a session."""
        ...

    async def forget_session(self, key: SessionKey) -> None:
        """Delete a session, and end its running answer."""
        ...

    async def gather_figures(self, own: list[Family]) -> Sequence[Sequence[Family]]:
        """Return the figures of all frontends, of which `own` are those of the asking one, and of the shared state
        itself."""
        ...

    async def abort(self, turn: Hashable, rid: str | None) -> int:
        """End requests in all frontends, as `Answering.abort`, and return how many."""
        ...

    async def reset_caches(self) -> None:
        """Clear the caches of all frontends and of the engine."""
        ...

    async def run_command(self, command: Command) -> ModelStatus:
        """Have the engine do a command, also wake up when its process has died asleep. Returns the status after it.
        Raises `CheckpointError`, `RequestError` or `ApiError`."""
        ...

    async def read_status(self) -> ModelStatus:
        """Return the status of the engine, in which every command shows that has been answered."""
        ...

    def terminate(self) -> None:
        """Shut the server down: running answers are finished."""
        ...


class LocalState:
    """The shared state of a server that has one process."""

    def __init__(
        self, engine: AsyncEngine, abort: Callable[[Hashable, str | None], int], *, max_responses: int
    ) -> None:
        """`abort`: that of the `Answering`."""
        self._abort = abort
        self.created = int(time.time())
        self.num_frontends_up = 1
        self._engine = engine
        self.responses: SharedResponses = LocalResponses(max_responses)
        self._sessions = SessionStore()

    @asynccontextmanager
    async def turn(self, key: SessionKey) -> AsyncIterator[SessionTurn]:
        cancelled = asyncio.Event()
        session = self._sessions.begin(key, cancelled.set)
        turn = _LocalTurn(self._sessions, session, cancelled)
        try:
            yield turn
        finally:
            if not turn.is_finished:
                self._sessions.end(session)

    async def cancel_session(self, key: SessionKey) -> None:
        self._sessions.cancel(key)

    async def forget_session(self, key: SessionKey) -> None:
        self._sessions.forget(key)

    async def gather_figures(self, own: list[Family]) -> Sequence[Sequence[Family]]:
        return (own,)

    async def abort(self, turn: Hashable, rid: str | None) -> int:
        return self._abort(turn, rid)

    async def reset_caches(self) -> None:
        await asyncio.to_thread(self._engine.reset_caches)

    async def run_command(self, command: Command) -> ModelStatus:
        await asyncio.to_thread(self._engine.run_command, command)
        return self._engine.status

    async def read_status(self) -> ModelStatus:
        return self._engine.status

    def terminate(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


class _LocalTurn:
    def __init__(self, sessions: SessionStore, session: Session, cancelled: asyncio.Event) -> None:
        self.conversation = session.conversation
        self.cancelled = cancelled
        self.is_finished = False
        self._sessions = sessions
        self._session = session

    async def finish(self, conversation: Conversation) -> None:
        self.is_finished = True
        self._sessions.end(self._session, conversation)

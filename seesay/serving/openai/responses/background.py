"""Responses that are answered in the background (`background: true`): stored from the start, looked at by id, and
streamed to as many clients as want that, each from where it likes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol

from seesay.serving.errors import ApiError
from seesay.serving.requests.state import ServerState
from seesay.serving.stored.response_store import StoredResponse

logger = logging.getLogger("seesay")

_WATCH_S = 1.0
RUNNING = ("queued", "in_progress")
"""The statuses of a response that is not there yet."""

_POLL_S = 0.2
_LOST = ApiError(
    500, "the process that answered ended; send the request again", kind="server_error", code="internal_error"
)


class Progress(Protocol):
    """Where a response that is being computed tells how far it is."""

    async def begin(self) -> None:
        """The first token is there."""
        ...

    async def tell(self, event: bytes) -> None:
        """Add the next event of the stream."""
        ...


Answer = Callable[[Progress], Awaitable[StoredResponse]]
"""Computes a response."""
MakeError = Callable[[ApiError], bytes]
"""Makes the event that ends the stream of a response that failed."""


_Place = tuple[bytes, str]  # owner and id of a response


class BackgroundAnswers:
    """The background responses of one frontend. Another frontend, which shares what is stored, may look at them and
    cancel them: their status says it, and is looked at each second."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._tasks: dict[_Place, asyncio.Task[None]] = {}
        self._news: dict[_Place, asyncio.Event] = {}  # set and replaced when there are new events

    async def start(
        self, owner: bytes, queued: StoredResponse, answer: Answer, make_error: MakeError | None = None
    ) -> None:
        """Store a response with the status 'queued', and have it answered. `make_error`: where it is streamed. Raises
        `ApiError` 429 where as many are being answered as requests may wait."""
        most = self._state.settings.max_queue
        if len(self._tasks) >= most:
            why = f"{most} background responses are being answered (max_queue); try again later"
            raise ApiError(429, why, kind="rate_limit_error", code="queue_full", retry_after_s=1)
        place = (owner, queued.body["id"])
        await self._store_running(place, queued)
        self._news[place] = asyncio.Event()
        task = asyncio.create_task(self._run(place, queued, answer, make_error))
        self._tasks[place] = task
        task.add_done_callback(lambda _: self._forget(place))

    def _forget(self, place: _Place) -> None:
        self._tasks.pop(place, None)
        self._news.pop(place).set()

    async def follow(self, owner: bytes, response_id: str, start: int = 0) -> AsyncGenerator[bytes, None]:
        """Yield the events of a streamed response from number `start` on, until it is there, cancelled or deleted."""
        place = (owner, response_id)
        while True:
            news = self._news.get(place)  # before the events are read, so that none is missed
            found = await self._state.shared.responses.read_events(*place, start)
            if found is None:
                return
            for event in found.events:
                yield event
            start += len(found.events)
            if found.is_over:
                return
            if news is None:  # another frontend computes it
                await asyncio.sleep(_POLL_S)
            else:
                await news.wait()

    async def cancel(self, owner: bytes, stored: StoredResponse) -> StoredResponse:
        """Cancel a response that is not there yet. Returns what is stored then."""
        place = (owner, stored.body["id"])
        cancelled = _with_status(stored, "cancelled")
        await self._state.shared.responses.store(*place, cancelled)
        await self._state.shared.responses.add_events(*place, (), is_last=True)
        if (task := self._tasks.get(place)) is not None:
            task.cancel()
        return cancelled

    async def _run(self, place: _Place, queued: StoredResponse, answer: Answer, make_error: MakeError | None) -> None:
        failure: ApiError | None = None
        try:
            async with self._watch(place):
                found = await answer(_Progress(self, place, queued))
        except asyncio.CancelledError:
            return
        except ApiError as error:
            failure = error
        except Exception:
            logger.exception("%s failed", place[1])
            failure = ApiError(500, "internal error", kind="server_error", code="internal_error")
        if failure is not None:
            found = _with_error(queued, failure)
            if make_error is not None:
                await self.tell(place, make_error(failure))
        if await self.is_wanted(place):
            await self._state.shared.responses.store(*place, found)
        await self._state.shared.responses.add_events(*place, (), is_last=True)

    async def begin(self, place: _Place, queued: StoredResponse) -> None:
        """Store that a response has begun."""
        if await self.is_wanted(place):
            await self._store_running(place, _with_status(queued, "in_progress"))

    async def _store_running(self, place: _Place, running: StoredResponse) -> None:
        """Store a response that is not there yet. If this process ends, it has failed."""
        await self._state.shared.responses.store(*place, running, if_lost=_with_error(running, _LOST))

    async def tell(self, place: _Place, event: bytes) -> None:
        """Store an event, and wake those who follow the response."""
        await self._state.shared.responses.add_events(*place, [event], is_last=False)
        news, self._news[place] = self._news[place], asyncio.Event()
        news.set()

    @asynccontextmanager
    async def _watch(self, place: _Place) -> AsyncIterator[None]:
        """Cancel this task once the response is cancelled elsewhere, deleted or evicted."""
        task = asyncio.current_task()
        assert task is not None

        async def watch() -> None:
            while await self.is_wanted(place):
                await asyncio.sleep(_WATCH_S)
            task.cancel()

        watcher = asyncio.create_task(watch())
        try:
            yield
        finally:
            watcher.cancel()

    async def is_wanted(self, place: _Place) -> bool:
        """Return whether a response is stored and not cancelled."""
        stored = await self._state.shared.responses.find(*place)
        return stored is not None and stored.body["status"] in RUNNING


class _Progress:
    """The `Progress` of one response."""

    def __init__(self, answers: BackgroundAnswers, place: _Place, queued: StoredResponse) -> None:
        self._answers = answers
        self._place = place
        self._queued = queued

    async def begin(self) -> None:
        await self._answers.begin(self._place, self._queued)

    async def tell(self, event: bytes) -> None:
        await self._answers.tell(self._place, event)


def _with_status(stored: StoredResponse, status: str, **fields: Any) -> StoredResponse:
    return replace(stored, body={**stored.body, "status": status, **fields})


def _with_error(stored: StoredResponse, error: ApiError) -> StoredResponse:
    code = "server_error" if error.status_code >= 500 else "invalid_prompt"
    failed = {"code": code, "message": error.message}
    return _with_status(stored, "failed", error=failed, completed_at=int(time.time()))

"""Responses that are answered in the background (`background: true`): stored from the start, looked at by id."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from seesay.serving.errors import ApiError
from seesay.serving.requests.state import ServerState
from seesay.serving.stored.response_store import StoredResponse

logger = logging.getLogger("seesay")

_WATCH_S = 1.0
RUNNING = ("queued", "in_progress")
"""The statuses of a response that is not there yet."""

Report = Callable[[], Awaitable[None]]
Answer = Callable[[Report], Awaitable[StoredResponse]]
"""Computes a response. It is called with a function to be called once the first token is there."""


class BackgroundAnswers:
    """The background responses of one frontend. Another frontend, which shares what is stored, may look at them and
    cancel them: their status says it, and is looked at each second."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._tasks: dict[tuple[bytes, str], asyncio.Task[None]] = {}

    async def start(self, owner: bytes, queued: StoredResponse, answer: Answer) -> None:
        """Store a response with the status 'queued', and have it answered. Raises `ApiError` 429 where as many are
        being answered as requests may wait."""
        most = self._state.settings.max_queue
        if len(self._tasks) >= most:
            why = f"{most} background responses are being answered (max_queue); try again later"
            raise ApiError(429, why, kind="rate_limit_error", code="queue_full", retry_after_s=1)
        place = (owner, queued.body["id"])
        await self._state.shared.store_response(*place, queued)
        task = asyncio.create_task(self._run(place, queued, answer))
        self._tasks[place] = task
        task.add_done_callback(lambda _: self._tasks.pop(place, None))

    async def cancel(self, owner: bytes, stored: StoredResponse) -> StoredResponse:
        """Cancel a response that is not there yet. Returns what is stored then."""
        place = (owner, stored.body["id"])
        cancelled = _with_status(stored, "cancelled")
        await self._state.shared.store_response(*place, cancelled)
        if (task := self._tasks.get(place)) is not None:
            task.cancel()
        return cancelled

    async def _run(self, place: tuple[bytes, str], queued: StoredResponse, answer: Answer) -> None:
        async def report() -> None:
            if await self._is_wanted(place):
                await self._state.shared.store_response(*place, _with_status(queued, "in_progress"))

        try:
            async with self._watch(place):
                found = await answer(report)
        except asyncio.CancelledError:
            return
        except ApiError as error:
            found = _with_error(queued, error)
        except Exception:
            logger.exception("%s failed", place[1])
            found = _with_error(queued, ApiError(500, "internal error", kind="server_error", code="internal_error"))
        if await self._is_wanted(place):
            await self._state.shared.store_response(*place, found)

    @asynccontextmanager
    async def _watch(self, place: tuple[bytes, str]) -> AsyncIterator[None]:
        """Cancel this task once the response is cancelled elsewhere, deleted or evicted."""
        task = asyncio.current_task()
        assert task is not None

        async def watch() -> None:
            while await self._is_wanted(place):
                await asyncio.sleep(_WATCH_S)
            task.cancel()

        watcher = asyncio.create_task(watch())
        try:
            yield
        finally:
            watcher.cancel()

    async def _is_wanted(self, place: tuple[bytes, str]) -> bool:
        stored = await self._state.shared.find_response(*place)
        return stored is not None and stored.body["status"] in RUNNING


def _with_status(stored: StoredResponse, status: str, **fields: Any) -> StoredResponse:
    return replace(stored, body={**stored.body, "status": status, **fields})


def _with_error(stored: StoredResponse, error: ApiError) -> StoredResponse:
    code = "server_error" if error.status_code >= 500 else "invalid_prompt"
    failed = {"code": code, "message": error.message}
    return _with_status(stored, "failed", error=failed, completed_at=int(time.time()))

"""What a session says to its client, in order. Bounded: a client that does not read holds up what makes messages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.websockets import WebSocketDisconnect

from seesay.serving.errors import ApiError
from seesay.serving.http.streaming import encode_json

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

_MAX_UNSENT = 256


class EndError(Exception):
    """The session ends: the error that the client is told, and the code with which the WebSocket is closed."""

    def __init__(self, error: ApiError, code: int) -> None:
        super().__init__(error.message)
        self.error, self.code = error, code


class Outbox:
    """Messages to one client."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[dict[str, object]] = asyncio.Queue(_MAX_UNSENT)

    def say(self, message: dict[str, object]) -> None:
        """Add a message at once. Raises `EndError` if the client has left too many unread."""
        try:
            self._messages.put_nowait(message)
        except asyncio.QueueFull:
            error = ApiError(408, f"the client left {_MAX_UNSENT} messages unread", code="slow_reader")
            raise EndError(error, 1008) from None

    async def put(self, message: dict[str, object]) -> None:
        """Add a message, when there is room."""
        await self._messages.put(message)

    async def send_all(self, socket: WebSocket) -> None:
        """Send messages as they come, until the client is gone."""
        try:
            while True:
                message = await self._messages.get()
                await socket.send_text(encode_json(message))
                self._messages.task_done()
        except (WebSocketDisconnect, RuntimeError):  # the latter where the WebSocket was closed meanwhile
            return

    async def flush(self) -> None:
        """Return when all messages were sent."""
        await self._messages.join()

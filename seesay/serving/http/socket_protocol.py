"""uvicorn's WebSocket protocol with limits, so that no client delays others however it sends."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveEvent, ASGISendEvent

LIVE_PATH = "/v1/live"
"""The path of the only WebSocket. An upgrade elsewhere is answered like any other request."""
SUBPROTOCOL = "seesay.live"
MAX_MESSAGE_BYTES = 8 << 20
MAX_MESSAGES_PER_S = 500

_SLICE_BYTES = 8 << 10
"""So much is parsed in one turn of the event loop: tiny messages take a hundred times as long as large ones."""
_LINGER_S = 1.0
_POLICY_VIOLATION = 1008


class BoundedSocketProtocol(WebSocketsSansIOProtocol):
    """Parse what comes in slices, and end a connection that sends more than `MAX_MESSAGES_PER_S`, pings included. A
    connection that is ended for a fault still brings its client the reason."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._received: deque[memoryview] = deque()
        self._num_messages, self._counted_at = 0, 0.0  # in the present second
        self._is_refused = False  # further bytes are discarded

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        is_parsing, pieces = bool(self._received), memoryview(data)
        self._received.extend(pieces[i : i + _SLICE_BYTES] for i in range(0, len(pieces), _SLICE_BYTES))
        if not is_parsing:
            self._parse()

    def _parse(self) -> None:
        """Parse one slice, and the others in later turns of the event loop. Meanwhile nothing more is read."""
        if self._received and not (self._is_refused or self.disconnected):
            piece = self._received[0]
            super().data_received(bytes(piece))
            self._received.popleft()
        if self._is_refused or self.disconnected:
            self._received.clear()
        elif self._received:
            self.transport.pause_reading()
            self.loop.call_soon(self._parse)
        elif not self.read_paused:
            self.transport.resume_reading()

    def handle_events(self) -> None:
        now = self.loop.time()
        if now - self._counted_at >= 1:
            self._num_messages, self._counted_at = 0, now
        self._num_messages += len(self.conn.events)
        if self._num_messages > MAX_MESSAGES_PER_S:
            self.conn.events_received()
            self.conn.fail(_POLICY_VIOLATION, f"more than {MAX_MESSAGES_PER_S} messages in a second")
            self.handle_parser_exception()
            return
        super().handle_events()

    def handle_parser_exception(self) -> None:
        """End the connection, but only a moment later: closing with unread bytes would reset it, and the client would
        not learn why."""
        assert self.conn.close_sent is not None
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = self._is_refused = True
        self.transport.resume_reading()
        self.close_timer = self.loop.call_later(_LINGER_S, self.transport.close)

    async def receive(self) -> ASGIReceiveEvent:
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            if not self._received:
                self.transport.resume_reading()
        return message

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if self.close_sent and self.initial_response is not None:
            self.handshake_complete = True  # it was refused; uvicorn would log that nothing was answered

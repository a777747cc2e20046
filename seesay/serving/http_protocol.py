"""uvicorn's HTTP protocol with bounds on what comes before a body: its bytes, and the time it may take."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 << 10  # of the request line and the headers
HEAD_TIMEOUT_S = 20.0


class BoundedHttpProtocol(HttpToolsProtocol):
    """Answers 431 to a head of more than `MAX_HEAD_BYTES`, and closes a connection whose next request has not begun to
    be answered `HEAD_TIMEOUT_S` after its first byte."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._num_unused = 0  # bytes since the last head or piece of a body was complete; trailers count too
        self._is_head_too_large = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._num_unused += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._num_unused > MAX_HEAD_BYTES:
            self._refuse_head()
        elif self._head_timer is None and not self._is_answering():
            self._start_timer()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._num_unused = 0
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            self._is_head_too_large = True
            raise ValueError("head too large")  # ends in `send_400_response`
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_unused = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_unused = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self._is_head_too_large:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    def _refuse_head(self) -> None:
        if not self._is_answering():  # else it would stand in the middle of another answer
            self.transport.write(
                b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
            )
        self.transport.close()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._end_slow_head)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_slow_head(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()

"""uvicorn's HTTP protocol with limits on the size and duration of request heads. The errors that it sends have the same
envelope as those of routes."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from seesay.serving.context import choose_id
from seesay.serving.errors import ApiError, bad_request

MAX_HEAD_BYTES = 64 << 10  # request line and headers together
HEAD_TIMEOUT_S = 20.0

_LINGER_S = 1.0
_MAX_DISCARDED_BYTES = 1 << 20


class BoundedHttpProtocol(HttpToolsProtocol):
    """Answer 431 to a head of more than `MAX_HEAD_BYTES`. Close a connection whose head is not complete
    `HEAD_TIMEOUT_S` after its first byte."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.url, self.headers = b"", []
        self._num_unused = 0  # bytes received since the last complete head or body chunk; trailers count too
        self._is_head_too_large = False
        self._is_refused = False  # further bytes are discarded
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._num_unused += len(data)
        if self._is_refused:
            if self._num_unused > _MAX_DISCARDED_BYTES:
                self.transport.close()
            return
        super().data_received(data)
        if self._is_refused or self.transport.is_closing():
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

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Answer a request that the parser refuses. uvicorn's own answer would be plain text."""
        if self._is_head_too_large:
            self._refuse_head()
        else:
            self._refuse(bad_request("this is not a valid HTTP/1.1 request", code="invalid_http"))

    def _refuse_head(self) -> None:
        message = f"the request line and headers have more than {MAX_HEAD_BYTES} bytes"
        self._refuse(ApiError(431, message, code="headers_too_large"))

    def _refuse(self, error: ApiError) -> None:
        """Send `error`, unless another answer is being sent, and close the connection."""
        if not self._is_answering() or self._is_reading_body():
            path = (self.url or b"").partition(b"?")[0].decode("latin-1")
            envelopes = self.config.app.state.server.envelopes  # type: ignore[union-attr]
            request_id = choose_id(self.headers or ())
            body = json.dumps(envelopes.wrap(path, self.headers or (), error)).encode()
            head = (
                f"HTTP/1.1 {error.status_code} {HTTPStatus(error.status_code).phrase}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
                f"x-request-id: {request_id}\r\nrequest-id: {request_id}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
            if self.transport.can_write_eof():
                # Closing with unread bytes would reset the connection, and the client would not see the answer.
                self._is_refused = True
                self.transport.write_eof()
                self.loop.call_later(_LINGER_S, self.transport.close)
                return
        self.transport.close()

    def _is_reading_body(self) -> bool:
        """Whether the bytes being received are the body of a request that has no answer yet."""
        return self.cycle is not None and self.cycle.more_body and not self.cycle.response_started

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

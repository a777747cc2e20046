"""uvicorn's HTTP protocol with limits on the size and duration of request heads. The errors that it sends have the same
envelope as those of routes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from http import HTTPStatus
from socket import SO_ERROR, SOL_SOCKET
from typing import TYPE_CHECKING, Any

from seesay.serving.errors import ApiError, bad_request
from seesay.serving.http.context import choose_id
from seesay.serving.http.offers import OfferlessProtocol

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

MAX_HEAD_BYTES = 64 << 10  # request line and headers together
HEAD_TIMEOUT_S = 20.0

_LINGER_S = 1.0
_MAX_DISCARDED_BYTES = 1 << 20


_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")
_MIN_BODY_BYTES = 16 << 10
"""A body that brings less in `HEAD_TIMEOUT_S`, although it is read, is not waited for."""
_PROBE = b"HTTP/1.1 102 Processing\r\n\r\n"
"""Sent to a client that has shut its side down: one that closed its connection answers with a reset."""
_PROBE_LOOKS_S = (0.05, 0.2, 1.0, 5.0)


class BoundedHttpProtocol(OfferlessProtocol):
    """Answer 431 to a head of more than `MAX_HEAD_BYTES`, and 400 to one without one valid Host. Close a connection
    whose head is not complete `HEAD_TIMEOUT_S` after its first byte, and answer 408 to a body that only drips. A client
    that shuts its side down behind a request still gets the answer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.url, self.headers = b"", []
        self._num_unused = 0  # bytes received since the last complete head or body chunk; trailers count too
        self._is_head_too_large = False
        self._is_refused = False  # further bytes are discarded
        self._has_ended = False  # the client sends nothing any more
        self._is_upgraded = False  # another protocol has the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = _HeadTimer(self.loop, transport.close)
        self._body_timer = _BodyTimer(
            self.loop, lambda: not self.flow.read_paused, lambda: self._refuse(_make_body_error())
        )
        self._head_timer.start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_timer.stop()
        self._body_timer.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._num_unused += len(data)
        if self._is_refused:
            if self._num_unused > _MAX_DISCARDED_BYTES:
                self.transport.close()
            return
        super().data_received(data)
        if self._is_refused or self._is_upgraded or self.transport.is_closing():
            return
        if self._num_unused > MAX_HEAD_BYTES:
            self._refuse(_make_head_error())
        elif not self._head_timer.is_running and not _is_answering(self.cycle):
            self._head_timer.start()

    def on_headers_complete(self) -> None:
        self._head_timer.stop()
        self._num_unused = 0
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            self._is_head_too_large = True
            raise ValueError("head too large")  # ends in `send_400_response`
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1 or (not hosts and self.parser.get_http_version() != "1.0"):
            raise ValueError("a request must have one Host header")
        if hosts and not _HOST.fullmatch(hosts[0]):
            raise ValueError("the Host header is not a host")
        super().on_headers_complete()
        self._body_timer.start()

    def handle_websocket_upgrade(self) -> None:
        self._is_upgraded = True
        self._head_timer.stop()
        self._body_timer.stop()
        super().handle_websocket_upgrade()

    def on_body(self, body: bytes) -> None:
        self._num_unused = 0
        self._body_timer.add(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_unused = 0
        self._body_timer.stop()
        super().on_message_complete()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection for the answer to a whole request, unless the client has closed it altogether."""
        if not _is_answering(self.cycle) or _is_reading_body(self.cycle) or not self.transport.can_write_eof():
            return False
        self._has_ended = True
        assert self.cycle is not None
        if not self.cycle.response_started and self.scope["http_version"] != "1.0":
            self.transport.write(_PROBE)
        elif send_comment := self.cycle.scope["state"].get("send_comment"):
            send_comment()
        for delay_s in _PROBE_LOOKS_S:
            self.loop.call_later(delay_s, _abort_if_reset, self.transport)
        return True

    def on_response_complete(self) -> None:
        is_last = self._has_ended and not self.pipeline
        super().on_response_complete()
        if is_last:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Answer a request that the parser refuses. uvicorn's own answer would be plain text."""
        if self._is_head_too_large:
            self._refuse(_make_head_error())
        else:
            self._refuse(bad_request("this is not a valid HTTP/1.1 request", code="invalid_http"))

    def _refuse(self, error: ApiError) -> None:
        """Send `error`, unless another answer is being sent, and close the connection."""
        if not _is_answering(self.cycle) or _is_reading_body(self.cycle):
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
            if self.cycle is not None:  # the request whose body is refused gets no other answer
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            if self.transport.can_write_eof():
                # Closing with unread bytes would reset the connection, and the client would not see the answer.
                self._is_refused = True
                self.transport.write_eof()
                self.loop.call_later(_LINGER_S, self.transport.close)
                return
        self.transport.close()


class _HeadTimer:
    """Calls `on_late` where a head is not complete in `HEAD_TIMEOUT_S`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_late: Callable[[], None]) -> None:
        self._loop, self._on_late = loop, on_late
        self._handle: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        return self._handle is not None

    def start(self) -> None:
        self._handle = self._loop.call_later(HEAD_TIMEOUT_S, self._end)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _end(self) -> None:
        self._handle = None
        self._on_late()


class _BodyTimer:
    """Calls `on_drip` where a body has brought next to nothing in `HEAD_TIMEOUT_S`, although it was read."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, is_read: Callable[[], bool], on_drip: Callable[[], None]
    ) -> None:
        self._loop, self._is_read, self._on_drip = loop, is_read, on_drip
        self._handle: asyncio.TimerHandle | None = None
        self._num_bytes = 0  # in the present period

    def start(self) -> None:
        self.stop()
        self._num_bytes = 0
        self._handle = self._loop.call_later(HEAD_TIMEOUT_S, self._check)

    def add(self, num_bytes: int) -> None:
        """Count bytes of the body."""
        self._num_bytes += num_bytes

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _check(self) -> None:
        if self._num_bytes < _MIN_BODY_BYTES and self._is_read():
            self._handle = None
            self._on_drip()
        else:
            self.start()


def _make_head_error() -> ApiError:
    message = f"the request line and headers have more than {MAX_HEAD_BYTES} bytes"
    return ApiError(431, message, code="headers_too_large")


def _make_body_error() -> ApiError:
    message = f"the body brought less than {_MIN_BODY_BYTES} bytes in {HEAD_TIMEOUT_S:g} s"
    return ApiError(408, message, code="body_timeout")


def _is_reading_body(cycle: RequestResponseCycle | None) -> bool:
    """Whether the bytes being received are the body of a request that has no answer yet."""
    return cycle is not None and cycle.more_body and not cycle.response_started


def _is_answering(cycle: RequestResponseCycle | None) -> bool:
    return cycle is not None and not cycle.response_complete


def _abort_if_reset(transport: asyncio.Transport) -> None:
    sock = transport.get_extra_info("socket")
    if sock is not None and not transport.is_closing() and sock.getsockopt(SOL_SOCKET, SO_ERROR):
        transport.abort()

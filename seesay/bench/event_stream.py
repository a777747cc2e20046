"""A client for streamed chat completions that costs little CPU, so that a benchmark measures the server.

It speaks as much HTTP/1.1 as that needs: POST with a body, answers in chunks or of a known length, connections that are
kept open. A general client spends more time on a chunk than a fast server does.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

MAX_IDLE_S = 2.0
"""A connection that was idle for longer is not used again: servers close theirs after some seconds."""


class Connection(asyncio.Protocol):
    """One connection. `on_event` gets the data of each server-sent event and when it arrived."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[None] | None = None
        self._on_event: Callable[[bytes, float], None] | None = None
        self._received = bytearray()
        self._status, self._num_left, self._is_chunked, self._closes = 0, 0, False, False
        self._body = b""  # of the answer: the line that is not complete yet; the whole of an error

    @property
    def is_usable(self) -> bool:
        is_open = self._transport is not None and not self._transport.is_closing()
        return is_open and time.monotonic() - self.idle_since < MAX_IDLE_S

    async def post(self, request: bytes, on_event: Callable[[bytes, float], None]) -> None:
        """Send a request with its head, and wait for the end of the answer. Raises RuntimeError for a status other than
        200, and ConnectionError when the connection ends before the answer does."""
        assert self._transport is not None and self._done is None, "one request at a time"
        self._done = asyncio.get_running_loop().create_future()
        self._on_event = on_event
        self._received.clear()
        self._status, self._num_left, self._is_chunked, self._closes = 0, 0, False, False
        self._body = b""
        self._transport.write(request)
        try:
            await self._done
        except asyncio.CancelledError:
            self._transport.abort()  # the rest of the answer would be taken for the next one's
            raise
        finally:
            self._done, self.idle_since = None, time.monotonic()
        if self._closes:
            self._transport.close()
        if self._status != 200:
            raise RuntimeError(f"status {self._status}: {self._body[:200].decode(errors='replace')}")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # --- called by asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._done.done():
            self.close()  # nobody asked
            return
        self._received += data
        try:
            if self._status == 0 and not self._read_head():
                return
            if self._read_chunks() if self._is_chunked else self._read_length():
                self._done.set_result(None)
        except (ValueError, LookupError) as error:  # not HTTP
            self._done.set_exception(ConnectionError(f"an answer that cannot be read: {error}"))
            self.close()

    # --- the answer ---

    def _read_head(self) -> bool:
        """Read status and headers; return whether they are complete."""
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return False
        first, *lines = bytes(self._received[:end]).lower().split(b"\r\n")
        del self._received[: end + 4]
        headers = {name.strip(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        self._is_chunked = headers.get(b"transfer-encoding") == b"chunked"
        self._num_left = 0 if self._is_chunked else int(headers[b"content-length"])
        self._closes = headers.get(b"connection") == b"close"
        self._status = int(first.split()[1])
        return True

    def _read_length(self) -> bool:
        self._num_left -= len(self._received)
        self._take(bytes(self._received))
        self._received.clear()
        return self._num_left <= 0

    def _read_chunks(self) -> bool:
        """Take all chunks that have arrived; return whether the last one was among them."""
        received, at, body = self._received, 0, []
        is_last = False
        while (end := received.find(b"\r\n", at)) >= 0:
            size = int(received[at:end].partition(b";")[0], 16)
            if len(received) < end + size + 4:
                break
            body.append(received[end + 2 : end + 2 + size])
            at = end + size + 4
            if size == 0:  # servers of chat completions send no trailers
                is_last = True
                break
        del received[:at]
        if body:
            self._take(b"".join(body))
        return is_last

    def _take(self, body: bytes) -> None:
        """Report the events in a piece of the body. The body of an error is kept instead."""
        self._body += body
        if self._status != 200:
            return
        *lines, self._body = self._body.split(b"\n")
        assert self._on_event is not None
        now = time.perf_counter()
        for line in lines:
            if line.startswith(b"data:"):
                self._on_event(line[5:].strip(), now)


class Client:
    """Posts JSON to one server, with as many connections as there are requests at a time."""

    def __init__(self, url: str, path: str, headers: Mapping[str, str] | None = None) -> None:
        """url: http or https; `path` is below that of it. headers: more headers of every request."""
        parts = urlsplit(url)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or (80 if self._ssl is None else 443)
        fields = {"Host": parts.netloc.rpartition("@")[2], "Content-Type": "application/json", **(headers or {})}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._head = f"POST {parts.path.rstrip('/')}{path} HTTP/1.1\r\n{lines}"
        self._idle: list[Connection] = []

    async def post(self, body: bytes, on_event: Callable[[bytes, float], None], *, timeout_s: float) -> None:
        """As `Connection.post`. Raises TimeoutError, too."""
        async with asyncio.timeout(timeout_s):
            connection = await self._connect()
            await connection.post(f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body, on_event)
        self._idle.append(connection)

    async def _connect(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
            connection.close()
        _, connection = await asyncio.get_running_loop().create_connection(
            Connection, self._host, self._port, ssl=self._ssl
        )
        return connection

    def close(self) -> None:
        for connection in self._idle:
            connection.close()

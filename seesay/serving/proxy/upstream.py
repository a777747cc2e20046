"""HTTP/1.1 to a node, over asyncio and httptools: connections are kept, and answers are read as they come.

A request takes 0.1 ms of processor time. aiohttp takes two to three times as much, httpcore ten times and httpx twenty
times (`benchmarks/proxy.py clients`), and none of them says whether a node may have begun a request that failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

import httptools

from seesay.serving.errors import ApiError

Headers = list[tuple[bytes, bytes]]

CONNECT_S = 5.0
_IDLE_S = 4.0
"""uvicorn closes a connection that was idle for 5 s."""
_MAX_IDLE = 256
_MAX_WAITING_BYTES = 256 << 10
"""A node is not read from while a client has so much of its answer to take."""


class NodeLostError(Exception):
    """A node did not take a request, or ended in the middle. `was_sent`: the node may have read the request. `is_gone`:
    it takes no connections."""

    def __init__(self, reason: str, *, was_sent: bool, is_gone: bool = False) -> None:
        super().__init__(reason)
        self.was_sent, self.is_gone = was_sent, is_gone


class _ClosedError(NodeLostError):
    """The node has closed the connection, perhaps because it was idle."""


class Answer:
    """What has arrived of an answer. `status` is 0 until its head is there; names of `headers` are lower-case."""

    def __init__(self, on_news: Callable[[], None], *, is_complete: bool = False) -> None:
        self.status, self.headers = 0, Headers()
        self.pieces, self.num_waiting = deque[bytes](), 0
        self.is_complete, self.is_kept, self.is_framed = is_complete, False, False
        self.parser = httptools.HttpResponseParser(self)
        self._on_news = on_news

    def take(self) -> bytes:
        """Return what has arrived of the body since the last call."""
        data = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        self.pieces.clear()
        self.num_waiting = 0
        return data

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.headers.append((name, value))
        self.is_framed |= name in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        if status < 200:  # the answer follows
            self.headers.clear()
            return
        self.status = status
        self._on_news()

    def on_body(self, body: bytes) -> None:
        self.pieces.append(body)
        self.num_waiting += len(body)
        self._on_news()

    def on_message_complete(self) -> None:
        if self.status:
            self.is_complete, self.is_kept = True, self.parser.should_keep_alive()
            self._on_news()


class Exchange(asyncio.Protocol):
    """A connection to a node, and the answer to the request that was sent last."""

    def __init__(self) -> None:
        self.idle_since_s = self.sent_s = 0.0
        self._transport: asyncio.Transport | None = None
        self._error: Exception | None = None
        self._news = asyncio.Event()
        self.answer = Answer(self._news.set, is_complete=True)

    def send(self, head: bytes, body: bytes) -> None:
        """Send a request."""
        assert self._transport is not None
        self.answer = Answer(self._news.set)
        self._transport.writelines((head, body) if body else (head,))
        self.sent_s = time.perf_counter()

    async def read_head(self) -> None:
        """Return once the head of the answer is there. Raises `NodeLostError`, or the error given to `fail`."""
        while not self.answer.status:
            await self._wait()

    async def read(self) -> bytes:
        """Return what has arrived of the body; empty at its end. Raises as `read_head` does."""
        while not (self.answer.pieces or self.answer.is_complete):
            await self._wait()
        if self.answer.num_waiting > _MAX_WAITING_BYTES and self._transport is not None:
            self._transport.resume_reading()
        return self.answer.take()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._news.clear()
        await self._news.wait()

    def fail(self, error: Exception) -> None:
        """Close the connection. Who reads from it gets `error`."""
        self._error = self._error or error
        self._news.set()
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent: the answer is complete, and the node keeps the connection."""
        if self._transport is None or self._transport.is_closing() or self._transport.get_write_buffer_size():
            return False
        return self.answer.is_complete and self.answer.is_kept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            if self.answer.is_complete:
                raise httptools.HttpParserError("nothing was asked")
            self.answer.parser.feed_data(data)
        except httptools.HttpParserError:
            self.fail(NodeLostError("the node does not speak HTTP/1.1", was_sent=True))
        if self.answer.num_waiting > _MAX_WAITING_BYTES and self._transport is not None:
            self._transport.pause_reading()

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        if self.answer.status and not self.answer.is_framed:
            self.answer.is_complete = True  # the end of the connection ends the answer
        self._error = self._error or _ClosedError("the node closed the connection", was_sent=True)
        self._news.set()


class Connections:
    """The connections to one node: `url` is http://HOST:PORT or https://HOST:PORT."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self._address = parts.hostname, parts.port
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.netloc.encode()
        self._idle: list[Exchange] = []
        self._busy: set[Exchange] = set()
        self._max_idle = _MAX_IDLE

    async def send(self, method: str, target: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> Exchange:
        """Send a request, and return its exchange once the head of the answer is there: give it to `free`. A connection
        that the node had closed is replaced. Raises `NodeLostError`."""
        lines = [b"%s %s HTTP/1.1\r\nhost: %s\r\n" % (method.encode(), target, self._host)]
        lines += [b"%s: %s\r\n" % pair for pair in headers]
        if body or method not in ("GET", "HEAD"):
            lines.append(b"content-length: %d\r\n" % len(body))
        head = b"".join((*lines, b"\r\n"))
        if (idle := self._take_idle()) is not None:
            with contextlib.suppress(_ClosedError):
                return await self._exchange(idle, head, body)
        return await self._exchange(await self._connect(was_sent=idle is not None), head, body)

    async def _exchange(self, exchange: Exchange, head: bytes, body: bytes) -> Exchange:
        self._busy.add(exchange)
        try:
            exchange.send(head, body)
            await exchange.read_head()
        except BaseException:
            self.free(exchange)
            raise
        return exchange

    async def fetch(
        self, target: bytes, headers: Iterable[tuple[bytes, bytes]] = (), method: str = "GET", body: bytes = b""
    ) -> tuple[int, bytes]:
        """Send a request, and return the status and the body of the answer. Raises `NodeLostError`."""
        exchange = await self.send(method, target, headers, body)
        try:
            answer = bytearray()
            while piece := await exchange.read():
                answer += piece
            return exchange.answer.status, bytes(answer)
        finally:
            self.free(exchange)

    def free(self, exchange: Exchange) -> None:
        """Keep the connection for another request, or close it, which ends the answer at the node."""
        self._busy.discard(exchange)
        if exchange.is_reusable and len(self._idle) < self._max_idle:
            exchange.idle_since_s = time.monotonic()
            self._idle.append(exchange)
        else:
            exchange.fail(NodeLostError("closed", was_sent=True))

    def retire(self) -> None:
        """Close each connection once its request has ended."""
        self._max_idle = 0
        while self._idle:
            self._idle.pop().fail(NodeLostError("closed", was_sent=False))

    def end(self, error: NodeLostError | ApiError) -> None:
        """End all running requests with `error`."""
        for exchange in list(self._busy):
            exchange.fail(error)

    def _take_idle(self) -> Exchange | None:
        while self._idle:
            exchange = self._idle.pop()
            if exchange.is_reusable and time.monotonic() - exchange.idle_since_s < _IDLE_S:
                return exchange
            exchange.fail(NodeLostError("closed", was_sent=False))
        return None

    async def _connect(self, *, was_sent: bool) -> Exchange:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_S):
                _, exchange = await asyncio.get_running_loop().create_connection(
                    Exchange, *self._address, ssl=self._ssl
                )
                return exchange
        raise NodeLostError("the node cannot be reached", was_sent=was_sent, is_gone=True)

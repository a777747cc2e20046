"""HTTP/1.1 with next to no work: an echo node and a client for measuring what stands between them.

    python benchmarks/light_http.py        a node on a free port of loopback, which it prints

uvicorn and an HTTP library take half a millisecond of processor time each for a request, on the cores that what is
measured needs. Both read nothing but the length of a body.
"""

from __future__ import annotations

import asyncio
import re
import time

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_IDLE_S = 4.0
"""uvicorn closes a connection that was idle for 5 s."""
_ANSWER = b'{"choices": [{"message": {"role": "assistant", "content": "%s"}}]}' % (b"word " * 200)


def make_message(start: bytes, body: bytes) -> bytes:
    """Return a request or an answer with a JSON body; `start` is its first line."""
    head = b"%s\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (start, len(body)) + body


class _Messages(asyncio.Protocol):
    """Cuts what arrives into messages."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._received, 0, end)
            size = end + 4 + (int(length[1]) if length else 0)
            if len(self._received) < size:
                return
            self._received = self._received[size:]
            self.on_message()

    def on_message(self) -> None:
        """Called for each whole message."""


class _Node(_Messages):
    def on_message(self) -> None:
        self.transport.write(make_message(b"HTTP/1.1 200 OK", _ANSWER))


class _Connection(_Messages):
    def __init__(self) -> None:
        super().__init__()
        self.answered: asyncio.Future[float] | None = None
        self.used_s = 0.0  # of time.perf_counter()

    def on_message(self) -> None:
        assert self.answered is not None
        self.answered.set_result(time.perf_counter())

    def connection_lost(self, exc: Exception | None) -> None:
        if self.answered is not None and not self.answered.done():
            self.answered.set_exception(exc or ConnectionResetError("the connection was closed"))


class Client:
    """Sends one request at a time on each of the connections that it keeps to an address."""

    def __init__(self, url: str, request: bytes) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self._address = host, int(port)
        self._request = request
        self._idle: list[_Connection] = []

    async def ask(self) -> float:
        """Send the request. Returns after how many seconds the answer was there."""
        loop = asyncio.get_running_loop()
        started_s = time.perf_counter()
        while self._idle and started_s - self._idle[0].used_s > _IDLE_S:
            self._idle.pop(0).transport.close()
        connection = self._idle.pop() if self._idle else (await loop.create_connection(_Connection, *self._address))[1]
        connection.answered = loop.create_future()
        connection.transport.write(self._request)
        connection.used_s = await connection.answered
        self._idle.append(connection)
        return connection.used_s - started_s


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Node, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())

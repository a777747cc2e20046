"""A uvicorn server that accepts connections itself.

When a process has no descriptor left, asyncio's own servers try two thousand times to accept a connection, log as many
tracebacks, and do it all again a second later: nothing else is answered meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket

import uvicorn

from seesay.serving.http.http_protocol import BoundedHttpProtocol

logger = logging.getLogger("seesay")

_PAUSE_S = 1.0
"""No connection is taken for so long when the process has no descriptor or memory left for one."""
_YIELD_S = 0.005
"""Longest wait for another process that should go first: it may be busy, or hang."""
_AT_ONCE = 64
"""Most connections that are taken in one turn of the event loop."""


class AcceptingServer(uvicorn.Server):
    """A server of sockets that are bound. `loop` is its event loop, once it has started."""

    loop: asyncio.AbstractEventLoop
    _opening: set[asyncio.Task[object]]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen. Raises `OSError`."""
        assert sockets, "bound sockets"
        self.loop, self._opening = asyncio.get_running_loop(), set()
        for sock in sockets:
            sock.setblocking(False)
            sock.listen(self.config.backlog)
        await super().startup([])
        for sock in sockets:
            self._resume(sock)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, then end those that are open."""
        for sock in sockets or ():
            self.loop.remove_reader(sock)
        await super().shutdown(sockets)

    @property
    def num_connections(self) -> int:
        """The connections that are open or being opened."""
        return len(self.server_state.connections) + len(self._opening)

    def lets_others_go_first(self) -> bool:
        """Return whether another process that has the sockets should take the next connection."""
        return False

    def _resume(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:  # it is closed when the server ends
            self.loop.add_reader(sock, self._on_waiting, sock)

    def _pause(self, sock: socket.socket) -> None:
        self.loop.remove_reader(sock)
        self.loop.call_later(_PAUSE_S, self._resume, sock)

    def _on_waiting(self, sock: socket.socket) -> None:
        """Take connections that wait, or let another process do so."""
        for _ in range(_AT_ONCE):
            if self.lets_others_go_first():
                self.loop.remove_reader(sock)
                self.loop.call_later(_YIELD_S, self._insist, sock)
                return
            if not self._take(sock):
                return

    def _insist(self, sock: socket.socket) -> None:
        """Take a connection unless another process has taken it meanwhile."""
        self._resume(sock)
        if sock.fileno() >= 0:
            self._take(sock)

    def _take(self, sock: socket.socket) -> bool:
        """Take one connection. Returns whether one waited."""
        try:
            connection, _ = sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        except OSError as error:
            logger.error("no connection can be taken: %s", error)
            self._pause(sock)
            return False
        connection.setblocking(False)
        task = self.loop.create_task(self._open(connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return True

    async def _open(self, connection: socket.socket) -> None:
        def make_protocol() -> asyncio.Protocol:
            return BoundedHttpProtocol(
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )

        with contextlib.suppress(OSError):  # the client has gone, or speaks no TLS
            await self.loop.connect_accepted_socket(make_protocol, connection, ssl=self.config.ssl)

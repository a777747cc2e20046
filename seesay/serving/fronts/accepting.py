"""A server whose listening sockets other processes have, too.

asyncio's own servers take all connections that wait: the process that wakes up first would get most of a burst, and
keep it for as long as its clients do. Here a process lets one with fewer open connections go first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket

from seesay.serving.fronts.connection_counts import ConnectionCounts
from seesay.serving.http_protocol import BoundedHttpProtocol
from seesay.serving.server import DrainingServer

logger = logging.getLogger("seesay")

_YIELD_S = 0.005
"""Longest wait for a process with fewer connections: it may be busy, or hang."""
_PAUSE_S = 1.0
"""No connection is taken for so long when the process has no descriptor or memory left for one."""
_AT_ONCE = 64
"""Most connections that are taken in one turn of the event loop."""


class SharingServer(DrainingServer):
    """A `DrainingServer` for sockets that are shared. Set `counts` and `index` before it runs."""

    counts: ConnectionCounts
    index: int
    _opening: set[asyncio.Task[object]]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        self._opening = set()
        assert sockets, "shared sockets"
        self.counts.set(self.index, 0)
        for sock in sockets:
            sock.setblocking(False)
            sock.listen(self.config.backlog)
            self._resume(sock)
        await super().startup([])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, then end those that are open."""
        self.counts.leave(self.index)
        for sock in sockets or ():
            asyncio.get_running_loop().remove_reader(sock)
        await super().shutdown(sockets)

    def _resume(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:  # it is closed when the server ends
            asyncio.get_running_loop().add_reader(sock, self._on_waiting, sock)

    def _on_waiting(self, sock: socket.socket) -> None:
        """Take connections that wait, or let another process do so."""
        for _ in range(_AT_ONCE):
            count = len(self.server_state.connections) + len(self._opening)
            self.counts.set(self.index, count)
            if count > self.counts.least():
                break
            if not self._take(sock):
                return
        else:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(sock)
        loop.call_later(_YIELD_S, self._insist, sock)

    def _insist(self, sock: socket.socket) -> None:
        """Take a connection that nobody else has taken meanwhile."""
        self._resume(sock)
        if sock.fileno() >= 0:
            self._take(sock)

    def _take(self, sock: socket.socket) -> bool:
        """Take one connection. Returns whether one waited."""
        loop = asyncio.get_running_loop()
        try:
            connection, _ = sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        except OSError as error:
            logger.error("no connection can be taken: %s", error)
            loop.remove_reader(sock)
            loop.call_later(_PAUSE_S, self._resume, sock)
            return False
        connection.setblocking(False)
        task = loop.create_task(self._open(connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return True

    async def _open(self, connection: socket.socket) -> None:
        def make_protocol() -> asyncio.Protocol:
            return BoundedHttpProtocol(
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )

        with contextlib.suppress(OSError):  # the client has gone, or speaks no TLS
            await asyncio.get_running_loop().connect_accepted_socket(make_protocol, connection, ssl=self.config.ssl)

"""A server whose listening sockets other processes have, too.

The process that wakes up first would get most of a burst of connections, and keep it for as long as its clients do.
Here a process lets one with fewer open connections go first.
"""

from __future__ import annotations

import signal
import socket
from types import FrameType

from seesay.serving.frontends.connection_counts import ConnectionCounts
from seesay.serving.server import DrainingServer


class SharingServer(DrainingServer):
    """A `DrainingServer` for sockets that are shared. Set `counts` and `index` before it runs."""

    counts: ConnectionCounts
    index: int

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        self.counts.set(self.index, 0)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, then end those that are open."""
        self.counts.leave(self.index)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal of the supervisor: SIGTERM first, and SIGINT to cut answers off. A process that has not
        taken the first one yet takes them the other way round."""
        if sig == signal.SIGINT and not self.is_draining:
            super().handle_exit(signal.SIGTERM, frame)
        super().handle_exit(sig, frame)

    def lets_others_go_first(self) -> bool:
        """Return whether another process has fewer connections."""
        self.counts.set(self.index, self.num_connections)
        return self.num_connections > self.counts.least()

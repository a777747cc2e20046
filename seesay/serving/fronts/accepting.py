"""A server whose listening sockets other processes have, too.

The process that wakes up first would get most of a burst of connections, and keep it for as long as its clients do.
Here a process lets one with fewer open connections go first.
"""

from __future__ import annotations

import socket

from seesay.serving.fronts.connection_counts import ConnectionCounts
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

    def lets_others_go_first(self) -> bool:
        """Return whether another process has fewer connections."""
        self.counts.set(self.index, self.num_connections)
        return self.num_connections > self.counts.least()

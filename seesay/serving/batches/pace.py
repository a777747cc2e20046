"""How many lines of batches a server answers at a time: few while clients wait for answers, many while none does."""

from __future__ import annotations

import asyncio
from types import TracebackType

from seesay.serving.traffic.admission import Gate

MOST_LINES = 64
BUSY_LINES = 4
"""Lines beside requests of clients. A decode step takes little longer for four more rows; and a batch goes on, however
long clients keep the server busy."""
_INTERVAL_S = 0.02


class Pace:
    """Let lines of batches begin. Use it as an asynchronous context manager around the answer to a line.

    A request of a client is one inside `gate`, which lines of batches do not pass. No line begins while the server
    shuts down.
    """

    def __init__(self, gate: Gate, max_lines: int) -> None:
        self._gate = gate
        self.max_lines = min(MOST_LINES, max_lines)
        self._num_running = 0
        self._first = asyncio.Lock()

    async def __aenter__(self) -> None:
        async with self._first:  # first come, first served, and only one looks whether there is room
            while self._num_running >= self._limit():
                await asyncio.sleep(_INTERVAL_S)
            self._num_running += 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._num_running -= 1

    def _limit(self) -> int:
        if self._gate.is_draining:
            return 0
        return min(BUSY_LINES, self.max_lines) if self._gate.num_inside else self.max_lines

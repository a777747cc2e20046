"""One node of a distributor."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

MOST_FAILED, REST_S = 5, 10.0
"""A node that fails so many requests one after another gets none for so many seconds, if there are others: one that
fails at once would have the fewest requests, and the shortest times."""


@dataclass(eq=False)
class Node:
    """A server. `name` is what /nodes/status, metrics and the hashing call it: its URL, or the name of a replica."""

    url: str
    name: str = ""
    models: frozenset[str] = frozenset()  # empty: it has not said which it has
    speed: float | None = None  # requests a second
    is_up: bool = True
    num_running: int = 0
    num_failed: int = 0  # requests one after another, until now
    rests_until_s: float = 0.0  # of time.monotonic()
    latencies_s: deque[float] = field(default_factory=lambda: deque(maxlen=15))
    doubted: asyncio.Event = field(default_factory=asyncio.Event)  # it should be asked for its health at once
    hung: asyncio.Event = field(default_factory=asyncio.Event)  # it has answered no question for long
    _limits: set[asyncio.Timeout] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.name = self.name or self.url

    @property
    def mean_latency_s(self) -> float:
        """The mean time of the last answers; 0 before the first."""
        return sum(self.latencies_s) / len(self.latencies_s) if self.latencies_s else 0.0

    @property
    def is_resting(self) -> bool:
        """Whether it has failed so often that others should get requests."""
        return time.monotonic() < self.rests_until_s

    def note_answer(self, status: int, latency_s: float | None) -> None:
        """Count an answer, and its time if it says how fast the node is."""
        self.num_failed = self.num_failed + 1 if status >= 500 and status != 503 else 0
        if self.num_failed >= MOST_FAILED:
            self.rests_until_s = time.monotonic() + REST_S
        if latency_s is not None and status < 400:
            self.latencies_s.append(latency_s)

    def may_have(self, model: str | None) -> bool:
        """Return whether it may have a model: it has, or has not said which it has. None: whichever it has."""
        return model is None or not self.models or model in self.models

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Count a request as running for the time of the block, in which `end` raises TimeoutError."""
        self.num_running += 1
        try:
            async with asyncio.timeout(None) as limit:
                self._limits.add(limit)
                yield
        finally:
            self._limits.discard(limit)
            self.num_running -= 1

    def end(self) -> None:
        """End all running requests."""
        while self._limits:
            self._limits.pop().reschedule(0)

    def doubt(self, *, is_down: bool) -> None:
        """Have its health asked for. `is_down`: it gets no requests until then."""
        self.is_up &= not is_down
        self.doubted.set()

    def describe(self) -> dict[str, Any]:
        """Return its status, with the names of LMDeploy's distributor."""
        return {
            "models": sorted(self.models),
            "unfinished": self.num_running,
            "latency": list(self.latencies_s),
            "speed": self.speed,
            "url": self.url,
            "is_up": self.is_up,
            "is_resting": self.is_resting,
        }

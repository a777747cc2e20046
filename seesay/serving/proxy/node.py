"""One node of a distributor."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from seesay.serving.errors import bad_request
from seesay.serving.http.listener import shown_host
from seesay.serving.proxy.upstream import Connections

_NUM_LATENCIES = 15


class Node:
    """A server. `name` is what /nodes/status, metrics and the hashing call it: its URL, or the name of a replica."""

    def __init__(self, url: str, *, name: str = "", models: Collection[str] = (), speed: float | None = None) -> None:
        self.url, self.name = url, name or url
        self.models, self.speed = frozenset(models), speed
        self.connections = Connections(url)
        self.is_up = True
        self.num_running = 0
        self.latencies_s: deque[float] = deque(maxlen=_NUM_LATENCIES)
        self.doubted = asyncio.Event()  # it should be asked for its health at once
        self.hung = asyncio.Event()  # it has answered no question for long
        self.checking: asyncio.Task[None] | None = None

    @property
    def mean_latency_s(self) -> float:
        """The mean time of the last answers; 0 before the first."""
        return sum(self.latencies_s) / len(self.latencies_s) if self.latencies_s else 0.0

    def may_have(self, model: str | None) -> bool:
        """Return whether it may have a model: it has, or has not said which it has. None: whichever it has."""
        return model is None or not self.models or model in self.models

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count a request as running for the time of the block."""
        self.num_running += 1
        try:
            yield
        finally:
            self.num_running -= 1

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
        }


def read_url(url: object) -> str:
    """Return the URL of a node as it is compared, http(s)://HOST:PORT. Raises `ApiError` for any other."""
    with suppress(ValueError):
        parts = urlsplit(url if isinstance(url, str) and url.isascii() and url.isprintable() else "")
        host, port = parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        has_more = any((parts.path.rstrip("/"), parts.query, parts.fragment, "@" in parts.netloc))
        if host and parts.scheme in ("http", "https") and not has_more:
            return f"{parts.scheme}://{shown_host(host)}:{port}"
    raise bad_request("url must be http://HOST:PORT or https://HOST:PORT, without a path", "url")

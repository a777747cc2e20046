"""A distributor in a thread of the test process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from live_server import make_settings
from waiting import wait_until

from seesay.serving.proxy.app import create_proxy_app
from seesay.serving.proxy.nodes import Nodes
from seesay.serving.routing.node import Node
from seesay.serving.server import DrainingServer


@dataclass(frozen=True)
class LiveProxy:
    """A running distributor: its address, its nodes, and the uvicorn server."""

    url: str
    nodes: Nodes
    uvicorn: DrainingServer

    def call(self, work: Callable[[], object]) -> None:
        """Run `work` in the event loop of the distributor."""

        async def run() -> None:
            work()

        asyncio.run_coroutine_threadsafe(run(), self.uvicorn.loop).result(60)

    def post(self, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, timeout=60)

    def metric(self, start: str) -> float:
        """The sum of the metrics whose lines begin so."""
        rows = httpx.get(f"{self.url}/metrics").text.splitlines()
        return sum(float(row.rpartition(" ")[2]) for row in rows if row.startswith(start))


@contextlib.contextmanager
def serve_proxy(urls: Sequence[str], *, strategy: str = "cache_affinity", **options: Any) -> Iterator[LiveProxy]:
    """A distributor on a free port of loopback, for the time of the block."""
    settings = make_settings(**options)
    running: list[LiveProxy] = []
    with socket.socket(proto=socket.IPPROTO_TCP) as sock:  # asyncio sets TCP_NODELAY for these alone
        sock.bind(("127.0.0.1", 0))

        async def serve() -> None:
            nodes = Nodes(strategy)
            for url in urls:
                nodes.add(Node(url))
            server = DrainingServer.make(create_proxy_app(settings, nodes), settings)
            running.append(LiveProxy(f"http://127.0.0.1:{sock.getsockname()[1]}", nodes, server))
            try:
                await server.serve([sock])
            finally:
                await nodes.close()

        thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
        thread.start()
        wait_until(lambda: bool(running) and running[0].uvicorn.started, "the distributor does not start")
        try:
            yield running[0]
        finally:
            running[0].uvicorn.should_exit = True
            thread.join(60)
            assert not thread.is_alive(), "the distributor does not end"

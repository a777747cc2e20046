"""Runs a distributor."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

from seesay.errors import ConfigError
from seesay.serving.errors import ApiError
from seesay.serving.proxy.app import create_proxy_app
from seesay.serving.proxy.node import Node, read_url
from seesay.serving.proxy.nodes import Nodes
from seesay.serving.server import DrainingServer
from seesay.serving.settings import ServerSettings
from seesay.serving.traffic.metric_sums import Family
from seesay.system.log import set_up_logging


def run_proxy(
    settings: ServerSettings,
    urls: Sequence[str] = (),
    *,
    strategy: str = "cache_affinity",
    sockets: list[socket.socket],
    on_ready: Callable[[], None],
) -> None:
    """Distribute requests among the nodes at `urls`, and those that are added later, until SIGTERM or SIGINT; then
    drain and return. `sockets`: those of `open_sockets`. Raises `ConfigError` for a URL that is none of a node."""
    set_up_logging(settings.log_level, settings.max_log_len)
    try:
        addresses = [read_url(url) for url in urls]
    except ApiError as error:
        raise ConfigError(f"--nodes: {error.message}") from None

    async def serve() -> None:
        nodes = Nodes(strategy, key=settings.api_keys[0] if settings.api_keys else "")
        for url in addresses:
            nodes.add(Node(url))
        await serve_nodes(settings, nodes, sockets=sockets, on_ready=on_ready)

    asyncio.run(serve())


async def serve_nodes(
    settings: ServerSettings,
    nodes: Nodes,
    *,
    sockets: list[socket.socket],
    on_ready: Callable[[], None],
    gather_figures: Callable[[], Awaitable[Sequence[Sequence[Family]]]] | None = None,
) -> None:
    """Distribute requests among `nodes` until a signal, as `run_proxy` does. `gather_figures`: as of
    `create_proxy_app`."""
    app = create_proxy_app(settings, nodes, gather_figures=gather_figures)
    try:
        await DrainingServer.make(app, settings, on_ready=on_ready).serve(sockets)
    finally:
        nodes.close()

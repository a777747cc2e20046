"""The nodes of a distributor: which gets a request, and whether they are healthy."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

import aiohttp

from seesay.serving.errors import ApiError
from seesay.serving.http.client import fetch, open_client
from seesay.serving.http.listener import read_url
from seesay.serving.routing.affinity import Wish
from seesay.serving.routing.node import Node
from seesay.serving.routing.strategies import Recent, Router
from seesay.system.liveness import LIMIT_S

logger = logging.getLogger("seesay")

_MOST_REMOVED = 4096
_CHECK_S, _MAX_CHECK_S, _CHECK_TIMEOUT_S = 1.0, 10.0, 5.0
"""How often a node is asked for its health; one that is down is asked again after a pause that doubles."""


class Nodes:
    """The nodes by name, and the HTTP client that asks them. All methods are called in one event loop."""

    def __init__(self, strategy: str, *, key: str = "", hang_limit_s: float = LIMIT_S) -> None:
        """`key`: the API key with which nodes are asked for their models. A node that answers no question for
        `hang_limit_s` loses its running requests."""
        self.client = open_client()
        self.ending: ApiError | None = None  # what all requests end with
        self.router = Router(strategy)
        self._headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
        self._hang_limit_s = hang_limit_s
        self._nodes: dict[str, Node] = {}
        self._checks: dict[str, asyncio.Task[None]] = {}
        self._removed: Recent[str, None] = Recent(_MOST_REMOVED)

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._nodes.values()))

    @property
    def num_running(self) -> int:
        """Requests that nodes answer now."""
        return sum(node.num_running for node in self)

    def end_all(self, error: ApiError) -> None:
        """End every request with `error`."""
        self.ending = error
        for node in self:
            node.end()

    def add(self, node: Node, *, is_repeated: bool = False) -> None:
        """Add a node, or replace the one of its name, and ask for its health from now on. One that says again that it
        is there (`is_repeated`) stays away if it was removed."""
        if is_repeated and node.name in self._removed:
            return
        self._removed.pop(node.name, None)
        known = self._nodes.get(node.name)
        if known is not None and known.url == node.url:
            known.models, known.speed = node.models or known.models, node.speed or known.speed
            known.doubt(is_down=False)
            return
        if known is not None:
            self.remove(known.name)
        self._nodes[node.name] = node
        self._checks[node.name] = asyncio.get_running_loop().create_task(self._check(node))

    def remove(self, name: str) -> Node:
        """Remove a node by its name or URL. Requests that it has begun go on. Raises `ApiError` if there is none."""
        name = self.get(name).name
        self._checks.pop(name).cancel()
        self._removed[name] = None
        return self._nodes.pop(name)

    async def close(self) -> None:
        """Remove all nodes and close the connections to them."""
        for node in self:
            self.remove(node.name)
        await self.client.close()

    def choose(self, wish: Wish, tried: Collection[Node]) -> Node | None:
        """Return the node for a request; None if all that are up were tried, or the model's nodes are down or were."""
        left = self.left(tried)
        able = [node for node in left if node.may_have(wish.model)]
        if not left or (not able and any(wish.model in node.models for node in self)):
            return None
        # Where no node says that it has the model, any of them may answer that it does not exist.
        return self.router.choose(able or left, wish)

    def get(self, name: str) -> Node:
        """Return a node by its name or URL. Raises `ApiError` if there is none."""
        name = name if name in self._nodes else read_url(name)
        if name not in self._nodes:
            raise ApiError(404, f"there is no node {name[:200]}", code="not_found")
        return self._nodes[name]

    def left(self, tried: Collection[Node]) -> list[Node]:
        """Return the nodes that are up and were not tried."""
        return [node for node in self._nodes.values() if node.is_up and node not in tried]

    async def _check(self, node: Node) -> None:
        """Ask a node for its health until cancelled."""
        pause_s, heard_s = _CHECK_S, time.monotonic()
        while True:
            was_up = node.is_up
            status, _ = await fetch(self.client, f"{node.url}/health", timeout_s=_CHECK_TIMEOUT_S)
            await self._note_health(node, is_up=0 < status < 500)
            heard_s = time.monotonic() if status else heard_s
            if time.monotonic() - heard_s > self._hang_limit_s:
                node.hung.set()
                node.end()
            pause_s = _CHECK_S if node.is_up or was_up else min(_MAX_CHECK_S, 2 * pause_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(node.doubted.wait(), pause_s)
            node.doubted.clear()

    async def _note_health(self, node: Node, *, is_up: bool) -> None:
        if is_up and not (node.is_up and node.models):
            node.models = await _read_models(self.client, node.url, self._headers) or node.models
        if is_up != node.is_up:
            logger.warning("node %s is %s", node.name, "up" if is_up else "down")
        node.is_up = is_up


async def _read_models(
    client: aiohttp.ClientSession, url: str, headers: Sequence[tuple[bytes, bytes]]
) -> frozenset[str]:
    status, body = await fetch(client, f"{url}/v1/models", headers, timeout_s=_CHECK_TIMEOUT_S)
    with suppress(ValueError, TypeError, KeyError):  # the node is of another kind, or wants a key
        return frozenset(str(model["id"]) for model in json.loads(body)["data"] if status == 200)
    return frozenset()

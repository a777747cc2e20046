"""The nodes of a distributor: which gets a request, and whether they are healthy."""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

from seesay.serving.errors import ApiError
from seesay.serving.proxy.affinity import Wish
from seesay.serving.proxy.node import Node
from seesay.serving.proxy.strategies import make_strategy, prefer
from seesay.serving.proxy.upstream import NodeLostError
from seesay.system.liveness import LIMIT_S

_CHECK_S, _MAX_CHECK_S, _CHECK_TIMEOUT_S = 1.0, 10.0, 5.0
"""How often a node is asked for its health; one that is down is asked again after a pause that doubles."""
_MAX_STORED = 16_384


class Nodes:
    """The nodes by name. All methods are called in one event loop."""

    def __init__(self, strategy: str, *, key: str = "", hang_limit_s: float = LIMIT_S) -> None:
        """`key`: the API key with which nodes are asked for their models. A node that answers no question for
        `hang_limit_s` loses its running requests."""
        self._choose = make_strategy(strategy)
        self._headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
        self._hang_limit_s = hang_limit_s
        self._nodes: dict[str, Node] = {}
        self._homes: OrderedDict[str, str] = OrderedDict()  # names of nodes by the ids of what they store

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._nodes.values()))

    def add(self, node: Node) -> None:
        """Add a node, or replace the one of its name, and ask for its health from now on."""
        if (known := self._nodes.get(node.name)) is not None and known.url == node.url:
            known.models, known.speed = node.models or known.models, node.speed or known.speed
            known.doubt(is_down=False)
            return
        if known is not None:
            self.remove(known.name)
        self._nodes[node.name] = node
        node.checking = asyncio.get_running_loop().create_task(self._check(node))

    def remove(self, name: str) -> Node:
        """Remove a node. Requests that it has begun go on. Raises `ApiError` if there is none of this name."""
        if (node := self._nodes.pop(name, None)) is None:
            raise ApiError(404, f"there is no node {name[:200]}", code="not_found")
        assert node.checking is not None
        node.checking.cancel()
        node.connections.retire()
        return node

    def discard(self, node: Node) -> None:
        """Remove a node that has ended, if it is still there, and end its connections."""
        if self._nodes.get(node.name) is node:
            self.remove(node.name)
        node.connections.end(NodeLostError("the node has ended", was_sent=True))

    def close(self) -> None:
        """Remove all nodes and close their connections."""
        for node in self:
            self.remove(node.name).connections.end(NodeLostError("the distributor ends", was_sent=True))

    def choose(self, wish: Wish, tried: Collection[Node]) -> Node | None:
        """Return the node for a request, None if all that are up were tried."""
        nodes = self._candidates(wish.model, tried)
        home = self._nodes.get(self._homes.get(wish.stored_id or "", ""))
        if home in nodes or not nodes:
            return home if nodes else None
        return prefer(nodes, wish.session) if wish.session else self._choose(nodes, wish)

    def _candidates(self, model: str | None, tried: Collection[Node]) -> list[Node]:
        nodes = [node for node in self._nodes.values() if node.is_up and node not in tried]
        # Where no node says that it has the model, any of them may answer that it does not exist.
        return [node for node in nodes if node.may_have(model)] or nodes

    def note_stored(self, stored_id: str, node: Node) -> None:
        """Remember which node stores a response, conversation, file or batch."""
        self._homes[stored_id] = node.name
        if len(self._homes) > _MAX_STORED:
            self._homes.popitem(last=False)

    async def _check(self, node: Node) -> None:
        """Ask a node for its health until cancelled."""
        pause_s, heard_s = _CHECK_S, time.monotonic()
        while True:
            was_up, status = node.is_up, None
            with suppress(NodeLostError, TimeoutError):
                async with asyncio.timeout(_CHECK_TIMEOUT_S):
                    status, _ = await node.connections.fetch(b"/health")
                    heard_s = time.monotonic()
                    if status < 500 and not (was_up and node.models):
                        node.models = frozenset(await self._read_models(node)) or node.models
            node.is_up = status is not None and status < 500
            if time.monotonic() - heard_s > self._hang_limit_s:
                node.hung.set()
                node.connections.end(NodeLostError("the node hangs", was_sent=True))
            pause_s = _CHECK_S if node.is_up or was_up else min(_MAX_CHECK_S, 2 * pause_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(node.doubted.wait(), pause_s)
            node.doubted.clear()

    async def _read_models(self, node: Node) -> Sequence[str]:
        status, body = await node.connections.fetch(b"/v1/models", self._headers)
        with suppress(ValueError, TypeError, KeyError):  # the node is of another kind, or wants a key
            return [str(model["id"]) for model in json.loads(body)["data"]] if status == 200 else ()
        return ()

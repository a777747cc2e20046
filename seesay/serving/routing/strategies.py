"""Which node gets a request: LMDeploy's strategies, and `cache_affinity`, which sends what is cached to where it is."""

from __future__ import annotations

import hashlib
import math
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from seesay.serving.routing.affinity import Wish
from seesay.serving.routing.node import Node

K = TypeVar("K")
V = TypeVar("V")

LOAD_BOUND = 1.15
"""A node with more than so many times the mean number of running requests is passed over."""
CONVERSATION_BOUND = 1.25
"""A node with more than so many times the mean loses conversations that it has cached: computing them again elsewhere
costs more than to wait a little."""
_ALWAYS_ALLOWED = 6
"""Running requests that a node may have in any case. With four, where a few requests run at a time, a picture was soon
cached at two nodes because a third request for it came."""
_MAX_REMEMBERED, _MAX_STORED = 65_536, 16_384

Strategy = Callable[[Sequence[Node], Wish], Node]


class Recent(OrderedDict[K, V]):
    """A mapping of the keys that were set last, `size` at most."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._size:
            self.popitem(last=False)


class CacheAffinity:
    """Sends a conversation to the node that answered it last, another request to one that has had its key, and a new
    key to the less loaded of the two nodes that it prefers: whichever has not too much to do."""

    def __init__(self) -> None:
        self._homes: Recent[bytes, str] = Recent(_MAX_REMEMBERED)  # names of nodes by conversation
        self._had: Recent[bytes, frozenset[str]] = Recent(_MAX_REMEMBERED)  # names of nodes by key

    def __call__(self, nodes: Sequence[Node], wish: Wish) -> Node:
        if not wish.key:
            return min(random.sample(nodes, len(nodes)), key=lambda node: node.num_running)
        mean = (1 + sum(node.num_running for node in nodes)) / len(nodes)
        home, had = self._homes.get(wish.conversation), self._had.get(wish.key, frozenset())
        chosen = next((node for node in _below(nodes, CONVERSATION_BOUND * mean) if node.name == home), None)
        if chosen is None:
            order = rank(_below(nodes, LOAD_BOUND * mean), wish.key)
            known = [node for node in order if node.name in had]
            chosen = known[0] if known else min(order[:2], key=lambda node: node.num_running)
        self._homes[wish.conversation] = chosen.name
        self._had[wish.key] = had | {chosen.name}
        return chosen


def _below(nodes: Sequence[Node], bound: float) -> list[Node]:
    allowed = max(_ALWAYS_ALLOWED, math.ceil(bound))
    return [node for node in nodes if node.num_running < allowed]


def _choose_random(nodes: Sequence[Node], _: Wish) -> Node:
    return random.choices(nodes, _speeds(nodes))[0]


def _choose_expected(nodes: Sequence[Node], _: Wish) -> Node:
    waits = [node.num_running / speed for node, speed in zip(nodes, _speeds(nodes))]
    return random.choice([node for node, wait in zip(nodes, waits) if wait == min(waits)])


def _choose_observed(nodes: Sequence[Node], _: Wish) -> Node:
    return min(random.sample(nodes, len(nodes)), key=lambda node: node.mean_latency_s)


def rank(nodes: Sequence[Node], key: bytes) -> list[Node]:
    """Return the nodes, those that `key` prefers first (rendezvous hashing): a node that comes or goes changes nothing
    in the order of the others."""
    return sorted(nodes, key=lambda node: hashlib.blake2b(key + node.name.encode(), digest_size=8).digest())


def _speeds(nodes: Sequence[Node]) -> list[float]:
    """Return the requests a second that each node is said to answer; the mean of the others where it is not said."""
    said = [node.speed for node in nodes if node.speed]
    mean = sum(said) / len(said) if said else 1.0
    return [node.speed or mean for node in nodes]


_STRATEGIES: Mapping[str, Strategy] = {
    "random": _choose_random,
    "min_expected_latency": _choose_expected,
    "min_observed_latency": _choose_observed,
}


class Router:
    """Chooses nodes by a strategy. What continues something that a node stores goes to that node, and a session to one
    node."""

    def __init__(self, strategy: str) -> None:
        self._choose = make_strategy(strategy)
        self._homes: Recent[str, str] = Recent(_MAX_STORED)  # names of nodes by the ids of what they store

    def choose(self, nodes: Sequence[Node], wish: Wish) -> Node:
        """Return the node for a request. `nodes`, at least one, are those that may answer it."""
        home = self._homes.get(wish.stored_id) if wish.stored_id else None
        if home is not None and (at_home := [node for node in nodes if node.name == home]):
            return at_home[0]
        return rank(nodes, wish.session)[0] if wish.session else self._choose(_awake(nodes), wish)

    def knows(self, stored_id: str) -> bool:
        """Return whether it is known which node stores this. Another distributor may have seen how it came there."""
        return stored_id in self._homes

    def note_stored(self, stored_ids: Iterable[str], node: Node) -> None:
        """Remember which node stores these responses, conversations, files or batches."""
        for stored_id in stored_ids:
            self._homes[stored_id] = node.name


def _awake(nodes: Sequence[Node]) -> Sequence[Node]:
    """Return those that do not rest, all if they all do."""
    return [node for node in nodes if not node.is_resting] or nodes


def make_strategy(name: str) -> Strategy:
    """Return the strategy of a name; `cache_affinity` remembers the conversations of one distributor."""
    return CacheAffinity() if name == "cache_affinity" else _STRATEGIES[name]

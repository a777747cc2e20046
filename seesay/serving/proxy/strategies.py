"""Which node gets a request: LMDeploy's strategies, and `cache_affinity`, which sends what is cached to where it is."""

from __future__ import annotations

import hashlib
import math
import random
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from seesay.serving.proxy.affinity import Wish
from seesay.serving.proxy.node import Node

LOAD_BOUND = 1.15
"""A node with more than so many times the mean number of running requests is passed over."""
CONVERSATION_BOUND = 1.25
"""A node with more than so many times the mean loses conversations that it has cached: computing them again elsewhere
costs more than to wait a little."""
_ALWAYS_ALLOWED = 4
"""Running requests that a node may have in any case."""
_MAX_CONVERSATIONS = 65_536

Strategy = Callable[[Sequence[Node], Wish], Node]


class CacheAffinity:
    """Sends a conversation to the node that answered it last, and a new one to the node that its key prefers, or the
    next one in the key's order: whichever has not too much to do."""

    def __init__(self) -> None:
        self._homes: OrderedDict[bytes, str] = OrderedDict()  # names of nodes by conversation, the oldest first

    def __call__(self, nodes: Sequence[Node], wish: Wish) -> Node:
        if not wish.key:
            return min(random.sample(nodes, len(nodes)), key=lambda node: node.num_running)
        mean = (1 + sum(node.num_running for node in nodes)) / len(nodes)
        home = self._homes.pop(wish.conversation, "")
        chosen = next((node for node in _below(nodes, CONVERSATION_BOUND * mean) if node.name == home), None)
        chosen = chosen or prefer(_below(nodes, LOAD_BOUND * mean), wish.key)
        self._homes[wish.conversation] = chosen.name
        if len(self._homes) > _MAX_CONVERSATIONS:
            self._homes.popitem(last=False)
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


def prefer(nodes: Sequence[Node], key: bytes) -> Node:
    """Return the node that `key` prefers (rendezvous hashing): a node that comes or goes changes nothing in the order
    of the others."""
    return min(nodes, key=lambda node: hashlib.blake2b(key + node.name.encode(), digest_size=8).digest())


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


def make_strategy(name: str) -> Strategy:
    """Return the strategy of a name; `cache_affinity` remembers the conversations of one distributor."""
    return CacheAffinity() if name == "cache_affinity" else _STRATEGIES[name]

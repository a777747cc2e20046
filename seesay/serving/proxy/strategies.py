"""Which node gets a request: LMDeploy's strategies, and `cache_affinity`, which sends what is cached to where it is."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Mapping, Sequence

from seesay.serving.proxy.node import Node

LOAD_BOUND = 1.15
"""A node with more than so many times the mean number of running requests is passed over."""
_ALWAYS_ALLOWED = 4
"""Running requests that a node may have in any case."""


def _choose_random(nodes: Sequence[Node], _: bytes) -> Node:
    return random.choices(nodes, _speeds(nodes))[0]


def _choose_expected(nodes: Sequence[Node], _: bytes) -> Node:
    waits = [node.num_running / speed for node, speed in zip(nodes, _speeds(nodes))]
    return random.choice([node for node, wait in zip(nodes, waits) if wait == min(waits)])


def _choose_observed(nodes: Sequence[Node], _: bytes) -> Node:
    return min(random.sample(nodes, len(nodes)), key=lambda node: node.mean_latency_s)


def _choose_affine(nodes: Sequence[Node], key: bytes) -> Node:
    if not key:
        return min(random.sample(nodes, len(nodes)), key=lambda node: node.num_running)
    bound = max(_ALWAYS_ALLOWED, math.ceil(LOAD_BOUND * (1 + sum(node.num_running for node in nodes)) / len(nodes)))
    return prefer([node for node in nodes if node.num_running < bound], key)


def prefer(nodes: Sequence[Node], key: bytes) -> Node:
    """Return the node that `key` prefers (rendezvous hashing): a node that comes or goes changes nothing in the order
    of the others."""
    return min(nodes, key=lambda node: hashlib.blake2b(key + node.name.encode(), digest_size=8).digest())


def _speeds(nodes: Sequence[Node]) -> list[float]:
    """Return the requests a second that each node is said to answer; the mean of the others where it is not said."""
    said = [node.speed for node in nodes if node.speed]
    mean = sum(said) / len(said) if said else 1.0
    return [node.speed or mean for node in nodes]


STRATEGIES: Mapping[str, Callable[[Sequence[Node], bytes], Node]] = {
    "cache_affinity": _choose_affine,
    "random": _choose_random,
    "min_expected_latency": _choose_expected,
    "min_observed_latency": _choose_observed,
}

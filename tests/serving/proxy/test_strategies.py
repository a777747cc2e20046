"""Which node gets a request. The load bound is measured in a simulation of a day with a few very popular pictures."""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
from collections import Counter

import pytest

from seesay.serving.proxy.node import Node
from seesay.serving.proxy.strategies import LOAD_BOUND, STRATEGIES, prefer


@pytest.fixture
async def nodes() -> list[Node]:
    return make_nodes(4)


def make_nodes(num: int) -> list[Node]:
    return [Node(f"http://10.0.0.{index}:1") for index in range(num)]


async def test_preference_is_stable(nodes: list[Node]) -> None:
    """A node that leaves takes only its own keys with it, and keys are spread evenly."""
    keys = [b"%d" % index for index in range(2000)]
    first = {key: prefer(nodes, key) for key in keys}
    assert all(400 < count < 600 for count in Counter(first.values()).values())
    left = nodes[1:]
    assert all(prefer(left, key) is first[key] for key in keys if first[key] in left)


async def test_affine_until_full(nodes: list[Node]) -> None:
    """A key goes to its node until that has more than its share, then to the next in its order."""
    choose = STRATEGIES["cache_affinity"]
    order = [prefer(nodes, b"hot")]
    chosen = []
    for _ in range(40):
        node = choose(nodes, b"hot")
        node.num_running += 1
        chosen.append(node)
    assert chosen[:4] == order * 4
    assert max(node.num_running for node in nodes) <= LOAD_BOUND * 10 + 1
    for node in nodes:
        node.num_running = 0
    assert choose(nodes, b"hot") is order[0]


async def test_without_key_to_the_least_loaded(nodes: list[Node]) -> None:
    for node, running in zip(nodes, (3, 1, 2, 5)):
        node.num_running = running
    assert STRATEGIES["cache_affinity"](nodes, b"") is nodes[1]


async def test_random_by_speed(nodes: list[Node]) -> None:
    """Nodes that do not tell their speed count as the mean of the others."""
    nodes[0].speed, nodes[1].speed = 30.0, 10.0
    counts = Counter(STRATEGIES["random"](nodes, b"").name for _ in range(8000))
    assert [round(counts[node.name] / 1000) for node in nodes] == [3, 1, 2, 2]


async def test_expected_latency(nodes: list[Node]) -> None:
    for node, (running, speed) in zip(nodes, ((8, 10.0), (3, 2.0), (4, 10.0), (9, 10.0))):
        node.num_running, node.speed = running, speed
    assert STRATEGIES["min_expected_latency"](nodes, b"") is nodes[2]


async def test_observed_latency(nodes: list[Node]) -> None:
    for node, latency_s in zip(nodes, (0.4, 0.2, 0.3, 0.5)):
        node.latencies_s.append(latency_s)
    assert STRATEGIES["min_observed_latency"](nodes, b"") is nodes[1]
    nodes[1].latencies_s.append(1.0)
    assert STRATEGIES["min_observed_latency"](nodes, b"") is nodes[2]


@pytest.mark.parametrize("num_nodes", [4, 16])
async def test_load_bound(num_nodes: int) -> None:
    """Zipf's popularity, Poisson arrivals, skewed durations: no node has more than `LOAD_BOUND` times the mean load,
    and most requests go where their picture is."""
    draw = random.Random(7)
    nodes = make_nodes(num_nodes)
    num_keys = 50 * num_nodes
    weights = list(itertools.accumulate(1 / (place + 1) for place in range(num_keys)))
    ends: list[tuple[float, int]] = []
    load = dict.fromkeys(nodes, 0.0)
    cached, seen = set[tuple[int, Node]](), set[int]()
    now, last, num_hits, num_repeats = 0.0, 0.0, 0, 0
    peaks: list[float] = []
    for _ in range(6000):
        now += draw.expovariate(10.0 * num_nodes)
        while ends and ends[0][0] <= now:
            nodes[heapq.heappop(ends)[1]].num_running -= 1
        for node in nodes:
            load[node] += node.num_running * (now - last)
        last = now
        key = draw.choices(range(num_keys), cum_weights=weights)[0]
        node = STRATEGIES["cache_affinity"](nodes, b"%d" % key)
        node.num_running += 1
        num_hits += (key, node) in cached
        num_repeats += key in seen
        cached.add((key, node))
        seen.add(key)
        heapq.heappush(ends, (now + draw.lognormvariate(0.5, 0.8), nodes.index(node)))
        peaks.append(node.num_running / (sum(other.num_running for other in nodes) / num_nodes))
    assert max(load.values()) / statistics.mean(load.values()) <= LOAD_BOUND
    assert statistics.quantiles(peaks[500:], n=100)[98] <= LOAD_BOUND + 0.1
    assert num_hits / num_repeats >= 0.85

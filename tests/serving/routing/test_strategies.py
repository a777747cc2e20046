"""Which node gets a request. The load bound is measured in a simulation of a day with a few very popular pictures."""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
from collections import Counter

import pytest

from seesay.serving.routing import strategies
from seesay.serving.routing.affinity import Wish
from seesay.serving.routing.node import Node
from seesay.serving.routing.strategies import CONVERSATION_BOUND, LOAD_BOUND, make_strategy, rank


@pytest.fixture
async def nodes() -> list[Node]:
    return make_nodes(4)


def make_wish(key: bytes, conversation: int) -> Wish:
    return Wish(key=key, conversation=b"%d" % conversation)


def make_nodes(num: int) -> list[Node]:
    return [Node(f"http://10.0.0.{index}:1") for index in range(num)]


async def test_preference_is_stable(nodes: list[Node]) -> None:
    """A node that leaves takes only its own keys with it, and keys are spread evenly."""
    keys = [b"%d" % index for index in range(2000)]
    first = {key: rank(nodes, key)[0] for key in keys}
    assert all(400 < count < 600 for count in Counter(first.values()).values())
    left = nodes[1:]
    assert all(rank(left, key)[0] is first[key] for key in keys if first[key] in left)


async def test_affine_until_full(nodes: list[Node]) -> None:
    """A key goes to its node until that has more than its share, then to the next in its order."""
    choose = make_strategy("cache_affinity")
    order = [rank(nodes, b"hot")[0]]
    chosen = []
    for number in range(40):
        node = choose(nodes, make_wish(b"hot", number))
        node.num_running += 1
        chosen.append(node)
    assert chosen[:6] == order * 6
    assert max(node.num_running for node in nodes) <= LOAD_BOUND * 10 + 1
    for node in nodes:
        node.num_running = 0
    assert choose(nodes, make_wish(b"hot", 40)) is order[0]


async def test_a_conversation_stays_where_it_is_cached(nodes: list[Node]) -> None:
    """Also when the node that its picture prefers is free again, and until its own has more than its larger share."""
    choose = make_strategy("cache_affinity")
    wish = make_wish(b"hot", 1)
    preferred = rank(nodes, wish.key)[0]
    preferred.num_running = 20
    home = choose(nodes, wish)
    assert home is not preferred
    preferred.num_running = 0
    assert choose(nodes, wish) is home and choose(nodes, make_wish(b"new", 2)) is not home
    for node in nodes:
        node.num_running = 20
    home.num_running = round(20 * LOAD_BOUND) + 1
    assert choose(nodes, wish) is home
    home.num_running = round(20 * CONVERSATION_BOUND) + 4
    moved = choose(nodes, wish)
    assert moved is not home
    home.num_running = 20
    assert choose(nodes, wish) is moved, "what was computed again is cached there now"
    assert choose([node for node in nodes if node is not moved], wish) is not moved, "a node may be gone"


async def test_a_key_stays_where_it_was_sent(nodes: list[Node]) -> None:
    """A new key goes to the less loaded of the two nodes that it prefers, and then stays; one whose nodes all have too
    much to do goes to a third."""
    choose = make_strategy("cache_affinity")
    first, second, *_ = rank(nodes, b"hot")
    first.num_running = 1
    assert choose(nodes, make_wish(b"hot", 1)) is second
    first.num_running, second.num_running = 0, 3
    assert choose(nodes, make_wish(b"hot", 2)) is second
    for node in nodes:
        node.num_running = 20
    first.num_running = second.num_running = 30
    third = choose(nodes, make_wish(b"hot", 3))
    assert third not in (first, second)
    first.num_running = third.num_running = 20
    assert choose(nodes, make_wish(b"hot", 4)) is third, "the first node has not had it yet"


async def test_few_pictures_are_encoded_at_few_nodes() -> None:
    """Sixteen pictures, eight questions about each, eight requests at a time: whichever ports four nodes have, less
    than a third more pictures are encoded than there are. `random` encodes 55 to 61."""
    draw = random.Random(3)
    for _ in range(20):
        nodes = [Node(f"http://127.0.0.1:{port}") for port in draw.sample(range(30_000, 60_000), 4)]
        choose, encoded, running = make_strategy("cache_affinity"), set[tuple[int, Node]](), list[Node]()
        for number in range(128):
            node = choose(nodes, make_wish(b"%d" % (number % 16), number))
            node.num_running += 1
            encoded.add((number % 16, node))
            running.append(node)
            if len(running) == 8:
                running.pop(draw.randrange(8)).num_running -= 1
        assert len(encoded) <= 21


async def test_what_is_old_is_forgotten(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "_MAX_REMEMBERED", 8)
    choose = make_strategy("cache_affinity")
    preferred = rank(nodes, b"hot")[0]
    preferred.num_running = 20
    home = choose(nodes, make_wish(b"hot", 0))
    for number in range(1, 8):
        choose(nodes, make_wish(b"%d" % number, number))
    preferred.num_running = 0
    assert choose(nodes, make_wish(b"hot", 0)) is home
    for number in range(1, 9):
        choose(nodes, make_wish(b"%d" % number, number))
    assert choose(nodes, make_wish(b"hot", 0)) is preferred


async def test_without_key_to_the_least_loaded(nodes: list[Node]) -> None:
    for node, running in zip(nodes, (3, 1, 2, 5)):
        node.num_running = running
    assert make_strategy("cache_affinity")(nodes, Wish()) is nodes[1]


async def test_random_by_speed(nodes: list[Node]) -> None:
    """Nodes that do not tell their speed count as the mean of the others."""
    nodes[0].speed, nodes[1].speed = 30.0, 10.0
    counts = Counter(make_strategy("random")(nodes, Wish()).name for _ in range(8000))
    assert [round(counts[node.name] / 1000) for node in nodes] == [3, 1, 2, 2]


async def test_expected_latency(nodes: list[Node]) -> None:
    for node, (running, speed) in zip(nodes, ((8, 10.0), (3, 2.0), (4, 10.0), (9, 10.0))):
        node.num_running, node.speed = running, speed
    assert make_strategy("min_expected_latency")(nodes, Wish()) is nodes[2]


async def test_observed_latency(nodes: list[Node]) -> None:
    for node, latency_s in zip(nodes, (0.4, 0.2, 0.3, 0.5)):
        node.latencies_s.append(latency_s)
    assert make_strategy("min_observed_latency")(nodes, Wish()) is nodes[1]
    nodes[1].latencies_s.append(1.0)
    assert make_strategy("min_observed_latency")(nodes, Wish()) is nodes[2]


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
    choose = make_strategy("cache_affinity")
    for number in range(6000):
        now += draw.expovariate(10.0 * num_nodes)
        while ends and ends[0][0] <= now:
            nodes[heapq.heappop(ends)[1]].num_running -= 1
        for node in nodes:
            load[node] += node.num_running * (now - last)
        last = now
        key = draw.choices(range(num_keys), cum_weights=weights)[0]
        node = choose(nodes, make_wish(b"%d" % key, number))
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

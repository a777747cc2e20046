"""The routing of the distributor over many replicas, under a virtual clock."""

from __future__ import annotations

import asyncio

import many_replicas
import pytest
from many_replicas import Cache, Replica, Result, Shape, simulate


def run(
    num: int, strategy: str = "cache_affinity", *, rate: float, seconds: float, shape: Shape | None = None
) -> Result:
    return asyncio.run(simulate(shape or Shape(), [Replica()] * num, rate=rate, seconds=seconds, strategy=strategy))


def test_cache_forgets_least_recently_used() -> None:
    cache = Cache(3)
    assert [cache.use(keys) for keys in ([1, 2], [1, 3], [1, 2, 3], [4], [2, 3], [1])] == [0, 1, 3, 0, 2, 0]
    assert (cache.num_hits, cache.num_asked) == (6, 11)


def test_trace_is_drawn_alike() -> None:
    trace = [[(at_s, request.body) for at_s, request in many_replicas.Trace(Shape(), 500, 4, 1)] for _ in range(2)]
    assert trace[0] == trace[1] and 400 < len(trace[0]) < 2200
    assert [at_s for at_s, _ in trace[0]] == sorted(at_s for at_s, _ in trace[0])


def test_few_replicas_keep_what_is_cached() -> None:
    """The share of hits is far from that of random places, and no replica has much more than the mean."""
    shape = Shape(num_tenants=64, num_pictures=2000)
    affine = run(8, rate=1200, seconds=12, shape=shape)
    drawn = run(8, "random", rate=1200, seconds=12, shape=shape)
    assert affine.requests == drawn.requests > 4000
    assert affine.picture_hits > 0.85 > 0.7 > drawn.picture_hits and affine.prefix_hits > drawn.prefix_hits + 0.1
    assert affine.fullest_running <= 1.25 and affine.fullest_computed <= 1.25


@pytest.mark.slow
def test_goals_over_64_replicas() -> None:
    """At 10,000 requests a second: 0.85 of the hits of one cache without limits, and 1.25 times the mean load."""
    result = run(64, rate=10_000, seconds=40)
    assert result.prefix_hits >= 0.85 and result.picture_hits >= 0.85
    assert result.fullest_running_p99 <= 1.25 and result.fullest_computed <= 1.25

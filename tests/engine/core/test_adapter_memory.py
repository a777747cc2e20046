"""Which adapters are in host memory: who waits for whom, and for how long."""

from __future__ import annotations

import random
from concurrent.futures import wait
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from seesay.engine.core.adapter_memory import AdapterMemory


@dataclass
class Host:
    """Memory for `limit` adapters, and the requests that are computed."""

    limit: int
    live: dict[int, Any] = field(default_factory=dict)
    there: set[int] = field(default_factory=set)
    held: dict[int, Any] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)  # adapters, as their requests began

    def __post_init__(self) -> None:
        self.memory = AdapterMemory[int](self.limit)
        self._num_requests = 0

    def come(self, adapter_id: int) -> int:
        self._num_requests += 1
        self._admit(SimpleNamespace(request_id=self._num_requests, sequence=SimpleNamespace(adapter_id=adapter_id)))
        return self._num_requests

    def _admit(self, request: Any) -> None:
        if self.memory.take(request):
            assert request.sequence.adapter_id in self.there
            self.live[request.request_id] = request
            self.order.append(request.sequence.adapter_id)
        else:
            self.held[request.request_id] = request

    def turn(self) -> None:
        """Move adapters, and wait until those are there that are read."""
        for _ in range(2):
            used = {request.sequence.adapter_id for request in self.live.values()}
            wanted = [request.sequence.adapter_id for request in self.held.values()]
            moves = self.memory.plan_moves(used, wanted, read=lambda adapter_id: adapter_id, wake=lambda: None)
            assert not used & set(moves.leaving)
            self.there -= set(moves.leaving)
            for adapter_id, found in moves.come:
                assert found.result() == adapter_id
                self.there.add(adapter_id)
            assert len(self.there) + len(self.memory._reading) <= self.limit
            for request in self.memory.find_ready([adapter_id for adapter_id, _ in moves.come], self.held.values()):
                del self.held[request.request_id]
                self._admit(request)
            wait(self.memory._reading.values(), timeout=10)


def test_the_one_that_was_used_longest_ago_leaves() -> None:
    host = Host(2)
    for adapter_id in (1, 2, 1, 3, 1):
        request = host.come(adapter_id)
        host.turn()
        assert host.live.keys() == {request}
        host.live.clear()
    assert host.there == {1, 3}


@pytest.mark.parametrize(("limit", "num_there"), [(0, 5), (1, 1), (3, 3)])
def test_so_many_adapters_are_in_memory(limit: int, num_there: int) -> None:
    memory = AdapterMemory[int](limit)
    assert [memory.try_add(adapter_id) for adapter_id in range(1, 6)] == [True] * num_there + [False] * (5 - num_there)
    if limit:
        memory.forget(1)
        assert memory.try_add(9) and not memory.try_add(8)


@pytest.mark.parametrize("limit", [1, 2])
def test_one_that_waits_takes_its_turn(limit: int) -> None:
    """However many requests come for the adapters that are there."""
    host = Host(limit)
    running = [host.come(adapter_id) for adapter_id in range(1, limit + 1)]
    host.turn()
    assert list(host.live) == running
    host.come(9)
    host.turn()
    for _ in range(5):
        host.come(1)
        host.turn()
    assert 9 not in host.order
    del host.live[running[0]]  # the last of those that came before
    host.turn()
    assert host.order[-1] == 9


def test_an_adapter_that_is_read_for_nobody_stays_for_the_next() -> None:
    host = Host(1)
    request = host.come(1)
    host.memory.plan_moves(set(), [1], read=lambda adapter_id: adapter_id, wake=lambda: None)
    del host.held[request]  # aborted
    assert host.memory.is_reading
    wait(host.memory._reading.values(), timeout=10)
    host.turn()
    assert not host.memory._reading and host.there == {1}


@pytest.mark.parametrize("seed", range(20))
def test_all_are_answered(seed: int) -> None:
    """Whatever comes, ends and is aborted: no adapter leaves while it is used, and nobody waits for ever."""
    rng = random.Random(seed)
    host = Host(rng.randint(1, 4))
    for _ in range(300):
        action = rng.random()
        if action < 0.5:
            host.come(rng.randint(1, 6))
        elif action < 0.8 and host.live:
            del host.live[rng.choice(list(host.live))]
        elif action < 0.85 and host.held:
            del host.held[rng.choice(list(host.held))]
        if rng.random() < 0.7:
            host.turn()
    for _ in range(1000):
        if not host.live and not host.held:
            return
        host.turn()
        assert host.live, "somebody is computed"
        del host.live[min(host.live)]
    raise AssertionError("some wait for ever")

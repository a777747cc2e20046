"""The memory of several ranks: they have as many blocks as the one with the least room. Rank 0 has a small model, the
others answer what a test says."""

from __future__ import annotations

from typing import Any

import pytest
from llm import backbones
from noted_followers import NotedFollowers

from seesay.device.ranks import Place
from seesay.engine.process.ranks.led_memory import LedMemory
from seesay.llm.running.cache_size import CacheSize, choose_cache_size


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Has the decoder and the limits of all."""
    return backbones.load_runner(backbones.make_backbone("qwen2", tmp_path_factory.mktemp("qwen2")), num_blocks=8)


class Rank0:
    def __init__(self, runner: Any, size: int = 3) -> None:
        followers: Any = NotedFollowers()
        self.followers = followers
        self.memory = LedMemory(runner.decoder, runner.limits, place=Place(0, size), followers=followers)

    def allocate(self, **options: Any) -> int:
        self.followers.answers["choose_cache_size"] = [[12, 0, 0], [30, 0, 0]]
        return self.memory.allocate_cache(**{"num_blocks": 20, "share": 0.5, **options})


@pytest.fixture
def rank(runner: Any) -> Rank0:
    return Rank0(runner)


def test_all_have_as_many_blocks_as_the_least(rank: Rank0) -> None:
    assert rank.allocate(num_host_slots=3, size=(99, 0, 0)) == 12
    assert rank.memory.cache_size == CacheSize(12) and rank.memory.num_blocks == 12
    (chosen, options), (allocated, agreed), *others = rank.followers.calls
    assert (chosen, allocated) == ("choose_cache_size", "allocate_cache")
    assert options == {"num_blocks": 20, "share": 0.5 / 3, "num_host_slots": 3}, "all take of the same memory"
    assert agreed == {**options, "size": [12, 0, 0]}
    assert [name for name, _ in others] == ["restore_cache"], "a part of the call before"


def test_rank_0_may_have_the_least_room(rank: Rank0) -> None:
    assert rank.allocate(num_blocks=7) == 7


def test_what_the_encoder_needs_is_reserved_here_alone(rank: Rank0) -> None:
    """The others reserve what their own trials took."""
    memory = rank.memory
    expected = choose_cache_size(memory, num_blocks=0, share=0.1 / 3, reserved_bytes=1 << 28, num_host_slots=0)
    rank.followers.answers["choose_cache_size"] = [[1 << 40, 0, 0]]
    seen: list[Any] = []
    call = rank.followers.call

    def choose(name: str, work: Any, arguments: Any) -> Any:
        if name == "choose_cache_size":
            seen.append((work.keywords["reserved_bytes"], work.keywords["share"]))
            return list(expected._replace(num_blocks=5)), [[6, 0, 0]]
        return call(name, work, arguments)

    rank.followers.call = choose
    assert memory.allocate_cache(num_blocks=0, share=0.1, reserved_bytes=1 << 28) == 5
    assert seen == [(1 << 28, 0.1 / 3)]


def test_each_call_is_done_by_all(rank: Rank0) -> None:
    rank.allocate()
    rank.followers.calls.clear()
    memory = rank.memory
    assert memory.profile(records_graphs=True) == 0
    memory.drop_cache()
    assert memory._cache is None
    memory.restore_cache()
    assert memory.cache is not None
    memory.restore_graphs()
    memory.warm_up()
    calls = rank.followers.calls
    assert calls[0] == ("profile", {"records_graphs": True})
    assert all(arguments == {} for _, arguments in calls[1:])
    assert [name for name, _ in calls] == ["profile", "drop_cache", "restore_cache", "restore_graphs", "warm_up"]


@pytest.mark.parametrize("name", ["restore_graphs", "record_graphs", "warm_up", "measure_step_costs"])
def test_what_this_rank_does_is_the_runners(rank: Rank0, name: str) -> None:
    """Once all are told of it."""
    done: list[Any] = []

    def call(called: str, work: Any, arguments: Any) -> tuple[Any, list[Any]]:
        done.append((called, work.__name__, work.__self__, dict(arguments)))
        return "own", ["other"]

    rank.followers.call = call
    result = getattr(rank.memory, name)()
    assert done == [(name, name, rank.memory, {})]
    assert result == ("own" if name == "measure_step_costs" else None)


def test_a_cache_for_which_one_rank_has_no_room_is_dropped_by_all(rank: Rank0) -> None:
    rank.allocate()
    rank.memory.drop_cache()
    rank.followers.calls.clear()
    rank.followers.fails["restore_cache"] = MemoryError("rank 2 of 3: full")
    with pytest.raises(MemoryError, match="rank 2 of 3"):
        rank.memory.restore_cache()
    assert rank.followers.names() == ["restore_cache", "drop_cache"] and rank.memory._cache is None

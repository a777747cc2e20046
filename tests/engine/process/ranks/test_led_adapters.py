"""Adapters of several ranks: all of them have one, or none has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from noted_followers import NotedFollowers

from seesay.engine.core.adapters import ReadAdapter
from seesay.engine.process.ranks.led_adapters import FollowedAdapters, LedAdapterStore
from seesay.errors import CheckpointError, RequestError


class Runner:
    """Has adapters, and reads those whose folder is called by their number."""

    def __init__(self) -> None:
        self.adapters = self
        self.there: list[Any] = []
        self.fails: BaseException | None = None

    def add(self, adapter: Any) -> None:
        if self.fails is not None:
            raise self.fails
        self.there.append(adapter.id)

    def drop(self, adapter_id: int) -> None:
        if adapter_id in self.there:
            self.there.remove(adapter_id)


def make_adapter(number: int, tower: Any = None) -> ReadAdapter:
    decoder: Any = SimpleNamespace(id=number, folder=f"folder {number}")
    return ReadAdapter(decoder, tower)


class Rank0:
    def __init__(self) -> None:
        runner: Any = Runner()
        followers: Any = NotedFollowers()
        self.runner, self.followers = runner, followers
        self.store = LedAdapterStore(runner, followers=followers)


def test_all_ranks_add_and_drop_an_adapter() -> None:
    rank, tower = Rank0(), object()
    rank.store.add(make_adapter(5, tower))
    assert rank.runner.there == [5] and rank.store.towers == {5: tower}
    rank.store.drop(5)
    assert rank.runner.there == [] and rank.store.towers == {}
    assert rank.followers.calls == [
        ("add_adapter", {"adapter_id": 5, "folder": "folder 5"}),
        ("drop_adapter", {"adapter_id": 5}),
    ]


def test_an_adapter_that_a_follower_cannot_read_is_dropped_by_all() -> None:
    rank = Rank0()
    rank.followers.fails["add_adapter"] = CheckpointError("rank 1 of 2: it is gone")
    with pytest.raises(CheckpointError, match="rank 1 of 2"):
        rank.store.add(make_adapter(5))
    assert rank.runner.there == [] and rank.followers.names() == ["add_adapter", "drop_adapter"]


def test_an_adapter_without_room_here_is_dropped_by_all() -> None:
    rank = Rank0()
    rank.runner.fails = torch.OutOfMemoryError("full")
    with pytest.raises(RequestError, match="not enough memory"):
        rank.store.add(make_adapter(5))
    assert rank.followers.names() == ["add_adapter", "drop_adapter"]


@pytest.fixture
def following(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A follower, whose adapters are read by their folders' names."""
    runner: Any = Runner()
    followed = FollowedAdapters(runner)
    monkeypatch.setattr(followed._store, "read", lambda folder: make_adapter(int(folder)))
    return SimpleNamespace(runner=runner, calls=followed.calls, store=followed._store)


def test_a_follower_reads_the_folder_itself(following: Any) -> None:
    following.calls["add_adapter"](adapter_id=5, folder="5")
    assert following.runner.there == [5]
    following.calls["drop_adapter"](adapter_id=5)
    assert following.runner.there == []


def test_an_adapter_that_changed_meanwhile_is_refused(following: Any) -> None:
    with pytest.raises(CheckpointError, match="6: the adapter was changed while it was loaded"):
        following.calls["add_adapter"](adapter_id=5, folder="6")
    assert following.runner.there == []


def test_a_follower_leaves_the_tower_to_rank_0(following: Any) -> None:
    folder: Any = SimpleNamespace(path=Path("5"), names={"visual.blocks.0"})
    assert following.store._read_others(folder) is None

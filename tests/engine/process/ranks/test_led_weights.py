"""Weights of several ranks: what rank 0 has the others do beside its own, and what they do then.

One layer notes what it is told. tests/engine/test_rank_weights.py has models.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from noted_followers import NotedFollowers

from seesay.checkpoint.tensor_source import GivenTensor, HandedTensors
from seesay.engine.core.model_weights import ModelWeights
from seesay.engine.process.ranks.led_weights import FollowedWeights, LedWeights
from seesay.errors import CheckpointError, ConfigError

MODEL: Any = SimpleNamespace(
    checkpoint=SimpleNamespace(path=Path("model")), family=SimpleNamespace(weights=SimpleNamespace())
)
FOLDER: Any = SimpleNamespace(path=Path("second"))
BROKEN = CheckpointError("it does not fit")


class Layers:
    """The weights of a decoder."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.done: list[Any] = []
        self.fails: BaseException | None = None

    def parts(self) -> dict[str, Any]:
        return {}

    def check(self, source: Any, *, is_partial: bool) -> None:
        self.done.append(("check", source, is_partial))
        if self.fails is not None:
            raise self.fails

    def replace(self, source: Any, *, is_partial: bool) -> None:
        self.done.append(("replace", source, is_partial))

    def drop(self) -> None:
        self.done.append("drop")

    def tensors(self) -> list[Any]:
        return [SimpleNamespace(is_cpu=False, data_ptr=lambda: 7)]


class Rank0:
    def __init__(self, *, is_local: bool = True) -> None:
        layers: Any = Layers()
        followers: Any = NotedFollowers(is_local=is_local)
        self.layers, self.followers = layers, followers
        config: Any = None
        self.weights = LedWeights(MODEL, config, layers, None, followers=followers)


def make_given() -> HandedTensors:
    tensors = [
        GivenTensor(name=name, dtype="F32", shape=(1, 2), data=np.arange(8, dtype=np.uint8)) for name in ("a", "b")
    ]
    return HandedTensors({tensor.name: tensor for tensor in tensors})


def test_a_folder_is_checked_and_read_by_all() -> None:
    rank = Rank0()
    rank.weights.check_layers(FOLDER, is_partial=True)
    rank.weights.replace(FOLDER, is_partial=False)
    assert rank.layers.done == [("check", FOLDER, True), ("replace", FOLDER, False)]
    assert rank.followers.calls == [
        ("check_weights", {"source": {"folder": "second"}, "is_partial": True}),
        ("replace_weights", {"source": {"folder": "second"}, "is_partial": False}),
    ]


def test_tensors_are_sent_once_to_be_checked() -> None:
    rank, given = Rank0(), make_given()
    rank.weights.check_layers(given, is_partial=True)
    rank.weights.replace(given, is_partial=True)
    (_, checked), (_, replaced) = rank.followers.calls
    assert [tensor["name"] for tensor in checked["source"]["tensors"]] == ["a", "b"]
    assert set(checked["source"]["tensors"][0]) == {"name", "dtype", "shape", "data"}
    assert replaced == {"source": None, "is_partial": True}


def test_tensors_do_not_go_to_ranks_of_other_machines() -> None:
    rank = Rank0(is_local=False)
    with pytest.raises(ConfigError, match="give a folder with weights"):
        rank.weights.check_layers(make_given(), is_partial=True)
    assert rank.followers.calls == []
    rank.weights.check_layers(FOLDER, is_partial=True)
    assert rank.followers.names() == ["check_weights"]


@pytest.mark.parametrize("fails_here", [True, False])
def test_what_does_not_fit_one_rank_is_forgotten_by_all(fails_here: bool) -> None:
    rank = Rank0()
    if fails_here:
        rank.layers.fails = BROKEN
    else:
        rank.followers.fails["check_weights"] = BROKEN
    with pytest.raises(CheckpointError, match="it does not fit"):
        rank.weights.check_layers(make_given(), is_partial=True)
    assert rank.followers.calls[1:] == [("forget_source", {})]


def test_weights_are_dropped_moved_and_brought_back_by_all() -> None:
    rank = Rank0()
    rank.weights.drop()
    rank.weights.offload()
    rank.weights.restore()
    assert rank.followers.calls == [("drop_weights", {}), ("offload_weights", {}), ("restore_weights", {})]
    assert rank.layers.done == ["drop"]


def test_ranks_that_had_room_bring_their_weights_back_where_one_had_none() -> None:
    rank = Rank0()
    rank.followers.fails["offload_weights"] = MemoryError("full")
    with pytest.raises(MemoryError, match="full"):
        rank.weights.offload()
    assert rank.followers.names() == ["offload_weights", "restore_weights"]


def test_addresses_are_those_of_all_ranks() -> None:
    rank = Rank0()
    rank.followers.answers["find_addresses"] = [[1, 2], [3]]
    assert rank.weights.addresses() == [7, 1, 2, 3]


class Following:
    """A follower whose layers are noted. Folders are their names."""

    def __init__(self) -> None:
        layers: Any = Layers()
        config: Any = None
        self.layers = layers
        weights: Any = ModelWeights(MODEL, config, layers, None)
        weights.open_folder = lambda folder: f"opened {folder}"
        self.calls = FollowedWeights(weights).calls


def test_a_follower_opens_the_folder_itself() -> None:
    rank = Following()
    rank.calls["check_weights"](source={"folder": "second"}, is_partial=True)
    rank.calls["replace_weights"](source={"folder": "third"}, is_partial=False)
    assert rank.layers.done == [("check", "opened second", True), ("replace", "opened third", False)]


def test_a_follower_keeps_tensors_from_their_check_until_they_replace_others() -> None:
    leading, rank = Rank0(), Following()
    leading.weights.check_layers(make_given(), is_partial=True)
    [(_, arguments)] = leading.followers.calls
    for tensor in arguments["source"]["tensors"]:
        tensor["shape"] = list(tensor["shape"])  # as it arrives
    rank.calls["check_weights"](**arguments)
    rank.calls["replace_weights"](source=None, is_partial=True)
    (_, checked, _), (_, replaced, is_partial) = rank.layers.done
    assert checked is replaced and is_partial
    assert [(tensor.name, tensor.shape) for tensor in checked.tensors] == [("a", (1, 2)), ("b", (1, 2))]
    assert checked.tensor_names() == {"a", "b"}
    with pytest.raises(AssertionError):
        rank.calls["replace_weights"](source=None, is_partial=True)


@pytest.mark.parametrize("forget", ["forget_source", "another check"])
def test_a_follower_forgets_tensors_that_do_not_come(forget: str) -> None:
    leading, rank = Rank0(), Following()
    leading.weights.check_layers(make_given(), is_partial=True)
    rank.calls["check_weights"](**leading.followers.calls[0][1])
    if forget == "forget_source":
        rank.calls[forget]()
    else:
        rank.calls["check_weights"](source={"folder": "second"}, is_partial=True)
    with pytest.raises(AssertionError, match="checked first"):
        rank.calls["replace_weights"](source=None, is_partial=True)


def test_tensors_that_do_not_fit_are_not_kept() -> None:
    leading, rank = Rank0(), Following()
    leading.weights.check_layers(make_given(), is_partial=True)
    rank.layers.fails = BROKEN
    with pytest.raises(CheckpointError):
        rank.calls["check_weights"](**leading.followers.calls[0][1])
    with pytest.raises(AssertionError, match="checked first"):
        rank.calls["replace_weights"](source=None, is_partial=True)


def test_a_follower_does_the_rest_with_its_own() -> None:
    rank = Following()
    for name in ("drop_weights", "offload_weights", "restore_weights"):
        rank.calls[name]()
    assert rank.layers.done == ["drop"] and rank.calls["find_addresses"]() == [7]

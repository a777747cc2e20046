"""Tensors that are handed over one by one: those of one update at a time, all or none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from seesay.checkpoint.tensor_source import GivenTensor
from seesay.engine.commands import DropStaged, StageTensor
from seesay.engine.core.staged_tensors import StagedTensors
from seesay.errors import CheckpointError


class Weights:
    """Knows all tensors but those called 'odd'."""

    def __init__(self) -> None:
        self.checked: list[str] = []

    def check_given(self, tensor: GivenTensor) -> None:
        self.checked.append(tensor.name)
        if tensor.name == "odd":
            raise CheckpointError("update_weights: unexpected tensor 'odd'")


@pytest.fixture
def weights() -> Any:
    return Weights()


@pytest.fixture
def staged(weights: Any) -> StagedTensors:
    return StagedTensors(weights)


def stage(staged: StagedTensors, update_id: str, *names: str) -> None:
    for name in names:
        tensor = GivenTensor.of(name, np.arange(3))
        staged.stage(StageTensor(update_id=update_id, tensor=tensor))


def test_an_update_has_its_tensors_once(staged: StagedTensors, weights: Any) -> None:
    stage(staged, "x", "a", "b")
    assert weights.checked == ["a", "b"]
    found = staged.take("x")
    assert found.tensor_names() == {"a", "b"} and {tensor.name for tensor in found.tensors} == {"a", "b"}
    with pytest.raises(CheckpointError, match="no tensors were given, or another update"):
        staged.take("x")
    stage(staged, "x", "a")
    assert staged.take("x").tensor_names() == {"a"} and found.tensor_names() == {"a", "b"}


def test_there_are_none_at_first(staged: StagedTensors) -> None:
    with pytest.raises(CheckpointError, match="no tensors were given"):
        staged.take("x")


def test_those_of_another_update_take_their_place(staged: StagedTensors) -> None:
    stage(staged, "x", "a", "b")
    stage(staged, "y", "b")
    with pytest.raises(CheckpointError, match="another update took their place"):
        staged.take("x")
    assert staged.take("y").tensor_names() == {"b"}, "what was asked for in vain drops nothing"


@pytest.mark.parametrize("wrong", ["a", "odd"])
def test_a_tensor_that_does_not_fit_or_comes_twice_drops_all(staged: StagedTensors, weights: Any, wrong: str) -> None:
    stage(staged, "x", "a")
    message = "tensor 'a' was given twice" if wrong == "a" else "unexpected tensor 'odd'"
    with pytest.raises(CheckpointError, match=message):
        stage(staged, "x", wrong)
    with pytest.raises(CheckpointError, match="no tensors were given"):
        staged.take("x")
    stage(staged, "x", "a")
    assert staged.take("x").tensor_names() == {"a"}


def test_an_update_is_dropped_by_its_id(staged: StagedTensors) -> None:
    stage(staged, "x", "a")
    staged.stage(DropStaged(update_id="y"))
    assert staged._update_id == "x"
    staged.stage(DropStaged(update_id="x"))
    with pytest.raises(CheckpointError):
        staged.take("x")


def test_all_are_dropped(staged: StagedTensors) -> None:
    stage(staged, "x", "a")
    staged.drop()
    with pytest.raises(CheckpointError):
        staged.take("x")
    stage(staged, "x", "a")
    assert staged.take("x").tensor_names() == {"a"}, "it was not given twice"

"""Tensors that are handed over in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from seesay.checkpoint.tensor_source import GivenTensor, iterate_given


@pytest.mark.parametrize("dtype", ["<f4", ">f4", ">f2", ">i8", "<u2"])
def test_arrays_of_any_byte_order(dtype: str) -> None:
    given = GivenTensor.of("a", np.arange(6, dtype=dtype).reshape(2, 3)[::-1])
    assert given.read().tolist() == [[3, 4, 5], [0, 1, 2]]


def test_mappings_and_pairs_are_alike() -> None:
    tensors = {"a": torch.ones(2), "b": torch.zeros(1)}
    for source in (tensors, list(tensors.items()), iter([["a", tensors["a"]], ["b", tensors["b"]]])):
        assert {given.name: given.read().tolist() for given in iterate_given(source)} == {"a": [1.0, 1.0], "b": [0.0]}

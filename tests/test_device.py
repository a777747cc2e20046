from __future__ import annotations

import numpy as np
import pytest
import torch

from seesay.device import upload


def make_arrays() -> list[np.ndarray]:
    """Of several types and layouts, one empty and one read-only."""
    read_only = np.frombuffer(b"abcdef", dtype=np.uint8).reshape(1, 2, 3)
    turned = np.arange(12.0).reshape(3, 4).T
    return [np.arange(7, dtype=np.int32), read_only, np.array(2.5), np.zeros((0, 3), dtype=np.bool_), turned]


@pytest.mark.gpu
def test_uploaded_arrays_arrive_as_they_are() -> None:
    """Where Triton's kernels find them well aligned."""
    arrays = make_arrays()
    for array, there in zip(arrays, upload(arrays, torch.device("cuda")), strict=True):
        assert there.is_cuda and there.data_ptr() % 16 == 0 and there.is_contiguous()
        arrived = there.cpu().numpy()
        assert arrived.dtype == array.dtype
        np.testing.assert_array_equal(arrived, array)


def test_on_the_cpu_arrays_are_not_copied() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    [there] = upload([array], torch.device("cpu"))
    there[1, 2] = 9
    assert array[1, 2] == 9

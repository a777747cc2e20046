"""Copies between host and device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gpu_work import keep_gpu_busy

from seesay.device.transfers import HostCopy, upload


def test_on_the_cpu_a_copy_is_there_at_once() -> None:
    values = torch.arange(3), torch.ones(2, 2)
    copy = HostCopy(*values)
    assert copy.is_done
    assert all(found is value for found, value in zip(copy.wait(), values, strict=True))
    assert HostCopy().wait() == ()


ARRAYS: list[Any] = [
    np.arange(3, dtype=np.int32),
    np.ones((2, 3)),
    np.empty(0, dtype=np.int64),
    np.array([True]),
    np.array([7]),
]
ARRAYS += [np.array(2.5), np.arange(12.0).reshape(3, 4).T]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_what_is_uploaded_has_its_type_and_shape(device: str) -> None:
    for array, tensor in zip(ARRAYS, upload(ARRAYS, torch.device(device)), strict=True):
        assert tensor.device.type == device
        there = tensor.cpu().numpy()
        assert there.dtype == array.dtype and np.array_equal(there, array)


@pytest.mark.gpu
def test_a_copy_to_the_host_is_waited_for() -> None:
    values = torch.zeros(1000, device="cuda", dtype=torch.int64)
    torch.cuda.synchronize()
    keep_gpu_busy(200_000_000)
    values += 5
    copy = HostCopy(values, values.float())
    values += 1
    was_done = copy.is_done
    whole, real = copy.wait()
    assert not was_done and copy.is_done and whole.is_pinned()
    assert whole.tolist() == [5] * 1000 and real.tolist() == [5.0] * 1000


@pytest.mark.gpu
def test_read_only_arrays_are_uploaded_well_aligned() -> None:
    """Triton compiles a kernel anew for pointers that are not multiples of 16 bytes."""
    arrays: list[Any] = [np.frombuffer(b"abcde", dtype=np.uint8), *ARRAYS]
    uploaded = upload(arrays, torch.device("cuda"))
    assert bytes(uploaded[0].tolist()) == b"abcde"
    assert all(tensor.data_ptr() % 16 == 0 for tensor in uploaded if tensor.numel())

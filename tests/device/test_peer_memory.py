"""Memory that ranks open of each other, with a CUDA driver that only counts."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from seesay.device.peer_memory import open_by_driver
from seesay.device.ranks import OpenSum, Place

CPU = torch.device("cpu")
OWN, PEER = 0x1000, 0x2000


@dataclass
class Driver:
    """Allocates at OWN and opens at PEER. failing: the function that fails."""

    failing: str = ""
    held: set[int] = field(default_factory=set)
    num_bytes: int = 0

    def cuMemAlloc_v2(self, address: Any, size: ctypes.c_size_t) -> int:
        return self._hold("cuMemAlloc_v2", address, OWN, size.value)

    def cuMemsetD8_v2(self, address: ctypes.c_uint64, value: ctypes.c_ubyte, size: ctypes.c_size_t) -> int:
        assert (address.value, value.value, size.value) == (OWN, 0xFF, self.num_bytes)
        return 0

    def cuCtxSynchronize(self) -> int:
        return 0

    def cuIpcGetMemHandle(self, handle: Any, address: ctypes.c_uint64) -> int:
        assert address.value == OWN
        ctypes.memset(handle, 7, 64)
        return int(self.failing == "cuIpcGetMemHandle")

    def cuIpcOpenMemHandle_v2(self, address: Any, handle: Any, flags: ctypes.c_uint) -> int:
        assert bytes(handle) == bytes([7] * 64) and flags.value == 1
        return self._hold("cuIpcOpenMemHandle_v2", address, PEER, self.num_bytes)

    def cuMemFree_v2(self, address: ctypes.c_uint64) -> int:
        assert address.value == OWN
        self.held.remove(OWN)
        return 0

    def cuIpcCloseMemHandle(self, address: ctypes.c_uint64) -> int:
        assert address.value == PEER
        self.held.remove(PEER)
        return 0

    def _hold(self, name: str, pointer: Any, address: int, num_bytes: int) -> int:
        if self.failing == name:
            return 217
        self.held.add(address)
        self.num_bytes = num_bytes
        pointer._obj.value = address
        return 0


class Ranks:
    """Rank 1 of two. Rank 0 sends what this one does; is_same_host: from this machine. num_failed: of rank 0."""

    place = Place(1, 2)

    def __init__(self, *, is_same_host: bool = True, num_failed: int = 0) -> None:
        self._is_same_host, self._num_failed = is_same_host, num_failed

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        other = x.clone()
        if not self._is_same_host:
            other[:, -1] ^= 1
        return torch.cat([other, x], dim=1)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        return x + self._num_failed

    def begin_sum(self, x: torch.Tensor) -> Callable[[], OpenSum]:
        raise AssertionError

    def sum_add(self, x: torch.Tensor, residual: torch.Tensor) -> None:
        raise AssertionError

    def broadcast(self, x: torch.Tensor) -> None:
        raise AssertionError


def test_it_is_opened_and_closed() -> None:
    driver = Driver()
    memory = open_by_driver(driver, Ranks(), 5 << 20, CPU)
    assert memory is not None and memory.addresses == [PEER, OWN]
    assert driver.held == {OWN, PEER} and driver.num_bytes == 6 << 20  # whole pages
    memory.close()
    memory.close()
    assert not driver.held


@pytest.mark.parametrize("failing", ["cuMemAlloc_v2", "cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2"])
def test_without_access_nothing_is_held(failing: str, caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver(failing)
    assert open_by_driver(driver, Ranks(), 100, CPU) is None
    assert not driver.held and failing in caplog.text


def test_a_rank_on_another_machine_is_out_of_reach(caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver()
    assert open_by_driver(driver, Ranks(is_same_host=False), 100, CPU) is None
    assert not driver.held and "rank 0: it is on another machine" in caplog.text


def test_where_another_rank_fails_none_has_it() -> None:
    driver = Driver()
    assert open_by_driver(driver, Ranks(num_failed=1), 100, CPU) is None
    assert not driver.held

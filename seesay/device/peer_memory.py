"""Memory of this GPU that the processes of other ranks write to, by CUDA IPC. Nothing here knows what is exchanged.

It is allocated apart from torch's memory, which may come from segments that no other process can open. Only handles of
the CUDA driver cross processes, as bytes of a tensor. NVLink multicast is not used.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from seesay.device.query import synchronize
from seesay.device.ranks import Ranks
from seesay.device.streams import on_device

_HANDLE_BYTES = 64
_HOST_BYTES = 36
_LAZY_ENABLE_PEER_ACCESS = 1
_GRANULE_BYTES = 2 << 20
_logger = logging.getLogger(__name__)


class _Handle(ctypes.Structure):
    _fields_ = (("data", ctypes.c_byte * _HANDLE_BYTES),)


class PeerMemory:
    """A piece of memory per rank. driver: the functions of CUDA's. addresses: where this process finds each rank's, in
    their order; 0 if it does not."""

    def __init__(self, driver: Any, addresses: list[int], rank: int) -> None:
        self.driver, self._rank = driver, rank
        self.addresses = addresses

    def close(self) -> None:
        """Free the memory. No kernel of any rank may still use it."""
        for rank, address in enumerate(self.addresses):
            if address:
                free = self.driver.cuMemFree_v2 if rank == self._rank else self.driver.cuIpcCloseMemHandle
                free(ctypes.c_uint64(address))
        self.addresses = []


def try_open_peer_memory(ranks: Ranks, num_bytes: int, device: torch.device) -> PeerMemory | None:
    """Allocate `num_bytes` of 0xFF on each rank's GPU and return them, or None on all ranks if any of them cannot reach
    all others: on other machines, in containers that hide processes, or without peer access between GPUs."""
    with on_device(device):
        synchronize(device)  # makes the device's context current, in which the driver's functions work
        return open_by_driver(ctypes.CDLL("libcuda.so.1"), ranks, num_bytes, device)


def open_by_driver(driver: Any, ranks: Ranks, num_bytes: int, device: torch.device) -> PeerMemory | None:
    """Do this with the CUDA driver's functions. device: where the tensors are that ranks exchange."""
    memory = PeerMemory(driver, [0] * ranks.place.size, ranks.place.rank)
    handle = bytes(_HANDLE_BYTES)
    problem: DriverError | None = None
    try:
        memory.addresses[ranks.place.rank], handle = _allocate(driver, num_bytes)
    except DriverError as error:
        problem = error
    for rank, other in enumerate(_exchange(handle, ranks, device)):
        if rank != ranks.place.rank and problem is None:
            try:
                memory.addresses[rank] = _open(driver, other)
            except DriverError as error:
                problem = DriverError(f"the memory of rank {rank}: {error}")
    num_failed = int(ranks.sum(torch.tensor([int(problem is not None)], device=device)))
    if not num_failed:
        return memory
    if problem is not None:
        _logger.warning("small tensors are not summed through peer memory: %s", problem)
    memory.close()
    return None


class DriverError(Exception):
    """A function of the CUDA driver failed."""


def call_driver(function: Callable[..., int], *args: Any) -> None:
    """Call a function of the CUDA driver. Raises `DriverError`."""
    status = function(*args)
    if status:
        raise DriverError(f"{getattr(function, '__name__', function)} failed with CUDA error {status}")


def _allocate(driver: Any, num_bytes: int) -> tuple[int, bytes]:
    """Return the address of memory filled with 0xFF, and the handle by which other processes open it."""
    address, handle = ctypes.c_uint64(), _Handle()
    size = ctypes.c_size_t(-(-num_bytes // _GRANULE_BYTES) * _GRANULE_BYTES)
    call_driver(driver.cuMemAlloc_v2, ctypes.byref(address), size)
    try:
        call_driver(driver.cuMemsetD8_v2, address, ctypes.c_ubyte(0xFF), size)
        call_driver(driver.cuCtxSynchronize)
        call_driver(driver.cuIpcGetMemHandle, ctypes.byref(handle), address)
    except DriverError:
        driver.cuMemFree_v2(address)
        raise
    return address.value, bytes(handle)


def _exchange(handle: bytes, ranks: Ranks, device: torch.device) -> list[bytes]:
    """Return the handle of each rank, empty for those on another machine."""
    host = Path("/proc/sys/kernel/random/boot_id").read_bytes()[:_HOST_BYTES]
    own = torch.frombuffer(bytearray(handle + host), dtype=torch.uint8)
    gathered = ranks.gather(own.to(device)[None]).cpu().numpy().tobytes()
    width = _HANDLE_BYTES + _HOST_BYTES
    found = [gathered[start : start + width] for start in range(0, len(gathered), width)]
    return [each[:_HANDLE_BYTES] if each[_HANDLE_BYTES:] == host else b"" for each in found]


def _open(driver: Any, handle: bytes) -> int:
    if not any(handle):
        raise DriverError("it is on another machine, or has no memory for other ranks")
    address = ctypes.c_uint64()
    opened = _Handle.from_buffer_copy(handle)
    call_driver(driver.cuIpcOpenMemHandle_v2, ctypes.byref(address), opened, ctypes.c_uint(_LAZY_ENABLE_PEER_ACCESS))
    return address.value

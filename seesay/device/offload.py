"""Moves the memory of tensors to the host and back, while everything that refers to them stays as it is."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from seesay.device.query import synchronize
from seesay.device.transfers import PinnedMemory


class Offloaded:
    """Tensors whose memory is on the host until `restore`. They must not be used meanwhile. Afterwards they have their
    contents at other addresses, so CUDA graphs that use them must be recorded anew."""

    def __init__(self, tensors: Iterable[torch.Tensor], device: torch.device) -> None:
        """Copy to the host, then free the device's memory. Raises `MemoryError` or `RuntimeError` where the host has
        none; nothing is freed then."""
        self._device = device
        storages = {storage.data_ptr(): storage for storage in (tensor.untyped_storage() for tensor in tensors)}
        self._storages = [storage for storage in storages.values() if storage.nbytes()]
        self._copies: list[PinnedMemory] = []
        for storage in self._storages:
            copy = PinnedMemory((storage.nbytes(),), torch.uint8, device)
            copy.tensor.copy_(_bytes_of(storage, device), non_blocking=True)
            self._copies.append(copy)
        synchronize(device)
        for storage in self._storages:
            storage.resize_(0)

    @property
    def num_bytes(self) -> int:
        return sum(copy.tensor.nbytes for copy in self._copies)

    def restore(self) -> None:
        """Copy everything back, and free the host's memory. Raises `torch.OutOfMemoryError`; nothing is restored
        then."""
        try:
            for storage, copy in zip(self._storages, self._copies, strict=True):
                storage.resize_(copy.tensor.nbytes)
                _bytes_of(storage, self._device).copy_(copy.tensor, non_blocking=True)
            synchronize(self._device)
        except BaseException:
            synchronize(self._device)
            for storage in self._storages:
                storage.resize_(0)
            raise
        self._storages, self._copies = [], []


def _bytes_of(storage: torch.UntypedStorage, device: torch.device) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)

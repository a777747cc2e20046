"""What layers keep of whole sequences, in slots. Knows nothing about who owns a slot, or what a state means."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from seesay.device.query import measure_memory
from seesay.device.transfers import PinnedMemory
from seesay.errors import ConfigError
from seesay.llm.plans.step_plan import CopiedBlock
from seesay.llm.plans.traits import StateTensor

_Shapes = Sequence[tuple[StateTensor, ...]]

_LEAST_SPACING, _MOST_SPACING = 8, 128
"""Blocks between two snapshots, where rows of a prompt are cut: short rows would make a long prompt take many steps."""


class StateCache:
    """States of `num_slots` sequences, and `num_host_slots` more in host memory. `layers[i]` are the tensors
    [num_slots, …] of layer i.

    `pools` are the same memory, a tensor [num_slots, tensors of one kind, …] for each kind: `pool[s]` for each pool is
    what all layers have in slot s. Raises `ConfigError` where the host has not enough memory.
    """

    def __init__(
        self, shapes: _Shapes, *, num_slots: int, dtype: torch.dtype, device: torch.device, num_host_slots: int = 0
    ) -> None:
        kinds: dict[StateTensor, list[tuple[int, int]]] = {}
        for layer, tensors in enumerate(shapes):
            for place, kind in enumerate(tensors):
                kinds.setdefault(kind, []).append((layer, place))
        found: dict[tuple[int, int], torch.Tensor] = {}
        pools = []
        for kind, members in kinds.items():
            own = _type_of(kind, dtype)
            pool = make_zeros((num_slots, len(members), *kind.shape), own, device)
            found.update(zip(members, pool.unbind(1), strict=True))
            pools.append(pool)
        self.num_slots = num_slots
        self.pools = tuple(pools)
        self._host = _allocate_on_host(self.pools, num_host_slots)
        self.layers = tuple(
            tuple(found[layer, place] for place in range(len(tensors))) for layer, tensors in enumerate(shapes)
        )

    def copy(self, copies: Sequence[CopiedBlock]) -> None:
        """Copy slots, one after another: a slot may be written to and then be read. `-1 - s` is slot s of the host."""
        for source, target in copies:
            for part, place in zip(self._find(source), self._find(target), strict=True):
                place.copy_(part, non_blocking=True)

    def _find(self, slot: int) -> list[torch.Tensor]:
        """Return what all layers have in a slot, a tensor for each kind."""
        return [pool[slot] for pool in self.pools] if slot >= 0 else [memory.tensor[-1 - slot] for memory in self._host]

    def clear(self, slots: list[int]) -> None:
        """Zero the states of sequences that begin."""
        for pool in self.pools:
            pool.index_fill_(0, torch.tensor(slots, dtype=torch.int64, device=pool.device), 0)


def bytes_per_state(shapes: _Shapes, dtype: torch.dtype) -> int:
    """Bytes of one slot in all layers."""
    return sum(math.prod(kind.shape) * _type_of(kind, dtype).itemsize for tensors in shapes for kind in tensors)


def find_spacing(state_bytes: int, block_bytes: int) -> int:
    """Return how many blocks are between two snapshots: their keys and values take about as much memory as one, or
    more. The most where one of both is missing: a stage of layers that has both decides."""
    if not (state_bytes and block_bytes):
        return _MOST_SPACING
    return min(max(-(-state_bytes // block_bytes), _LEAST_SPACING), _MOST_SPACING)


def _allocate_on_host(pools: Sequence[torch.Tensor], num_slots: int) -> list[PinnedMemory]:
    """Return memory for so many slots of each pool. On a GPU it is pinned, so that copies do not halt the host."""
    num_bytes, free = num_slots * sum(pool[0].nbytes for pool in pools), measure_memory(torch.device("cpu")).free_bytes
    if num_bytes > free:
        raise ConfigError(
            f"num_cpu_blocks: beside so many blocks, {num_slots} states take {num_bytes / 2**30:.1f} GiB in host "
            f"memory, which has {free / 2**30:.1f} GiB free"
        )
    return [PinnedMemory((num_slots, *pool.shape[1:]), pool.dtype, pool.device) for pool in pools if num_slots]


def _type_of(kind: StateTensor, dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if kind.is_exact else dtype


def make_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros. On the CPU the system's own (`calloc`), whose pages take no memory before they are written to:
    `torch.zeros` writes to all of them."""
    if device.type != "cpu" or not math.prod(shape):
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)

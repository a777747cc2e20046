"""What layers keep of whole sequences, in slots. Knows nothing about who owns a slot, or what a state means."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from seesay.llm.plans.step_plan import CopiedBlock
from seesay.llm.plans.traits import StateTensor

_Shapes = Sequence[tuple[StateTensor, ...]]


class StateCache:
    """States of `num_slots` sequences. `layers[i]` are the tensors [num_slots, …] of layer i.

    `pools` are the same memory, a tensor [num_slots, tensors of one kind, …] for each kind: `pool[s]` for each pool is
    what all layers have in slot s.
    """

    def __init__(self, shapes: _Shapes, *, num_slots: int, dtype: torch.dtype, device: torch.device) -> None:
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
        self.layers = tuple(
            tuple(found[layer, place] for place in range(len(tensors))) for layer, tensors in enumerate(shapes)
        )

    def copy(self, copies: Sequence[CopiedBlock]) -> None:
        """Copy slots, one after another: a slot may be written to and then be read."""
        for source, target in copies:
            for pool in self.pools:
                pool[target].copy_(pool[source])

    def clear(self, slots: list[int]) -> None:
        """Zero the states of sequences that begin."""
        for pool in self.pools:
            pool.index_fill_(0, torch.tensor(slots, dtype=torch.int64, device=pool.device), 0)


def bytes_per_state(shapes: _Shapes, dtype: torch.dtype) -> int:
    """Bytes of one slot in all layers."""
    return sum(math.prod(kind.shape) * _type_of(kind, dtype).itemsize for tensors in shapes for kind in tensors)


def _type_of(kind: StateTensor, dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if kind.is_exact else dtype


def make_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros. On the CPU the system's own (`calloc`), whose pages take no memory before they are written to:
    `torch.zeros` writes to all of them."""
    if device.type != "cpu" or not math.prod(shape):
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)

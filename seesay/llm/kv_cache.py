"""The KV cache: one pool of blocks for all layers, and how many blocks fit. Knows nothing about who owns a block."""

from __future__ import annotations

import math

import numpy as np
import torch

from seesay.device.query import Memory
from seesay.llm.models.spec import DecoderConfig

CPU_MEMORY_SHARE = 0.25
"""Most of the host's free memory that the cache may take: the rest is other programs', and pages are touched lazily."""


class KVCache:
    """Keys and values of all cached tokens.

    `layers[i]` is [num_blocks, block_size, 2, num_kv_heads, head_dim], keys before values. `blocks[b]` is what all
    layers have of block b, [num_layers, block_size, 2, num_kv_heads, head_dim].
    """

    def __init__(
        self, config: DecoderConfig, *, num_blocks: int, block_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (config.num_layers, num_blocks, block_size, 2, config.num_kv_heads, config.head_dim)
        self._pool = _make_zeros(shape, dtype, device)
        self.layers = self._pool.unbind(0)
        self.blocks = self._pool.transpose(0, 1)

    def clear(self, block_ids: list[int]) -> None:
        """Zero blocks that a sequence begins to fill: a NaN that an earlier owner left in the slots behind its last
        token would get through any mask, because 0 · NaN is NaN."""
        ids = torch.tensor(block_ids, dtype=torch.int64, device=self._pool.device)
        self._pool.index_fill_(1, ids, 0)


def _make_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros. On the CPU the system's own (`calloc`), whose pages take no memory before they are written to:
    `torch.zeros` writes to all of them."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)


def bytes_per_block(config: DecoderConfig, *, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block in all layers."""
    return config.num_layers * block_size * 2 * config.num_kv_heads * config.head_dim * dtype.itemsize


def plan_num_blocks(
    *, memory: Memory, reserved_bytes: int, share: float, block_bytes: int, num_blocks_of_full_batch: int, is_cpu: bool
) -> int:
    """How many blocks to allocate: `share` of the free memory that is left after `reserved_bytes` for activations.

    On the CPU the cache takes a quarter of that at most, and never more than a full batch of the longest texts can
    fill. At least one block.
    """
    usable = max(0, memory.free_bytes - reserved_bytes) * share
    if not is_cpu:
        return max(1, int(usable // block_bytes))
    return max(1, min(int(usable * CPU_MEMORY_SHARE // block_bytes), num_blocks_of_full_batch))

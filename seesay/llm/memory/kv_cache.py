"""The KV cache: a pool of blocks for all layers, and how many blocks fit. Knows nothing about who owns a block."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from seesay.device.accelerator import Memory
from seesay.llm.memory.kv_layout import KVFormat, KVLayout, LayerCache
from seesay.llm.memory.state_cache import StateCache, make_zeros
from seesay.llm.plans.step_plan import CopiedBlock
from seesay.llm.plans.traits import KVShape

CPU_MEMORY_SHARE = 0.25
"""Most of the host's free memory that the cache may take: the rest is other programs', and pages are touched lazily."""


class KVCache:
    """Keys and values of all cached tokens.

    `layers[i]` is what layer i has of all blocks. `pools` are the same memory, a tensor for all layers of one layout,
    [num_blocks, layers of it, ...]: `pool[b]` for each pool is what all layers have of block b.
    """

    def __init__(
        self, layouts: Sequence[KVLayout], *, num_blocks: int, device: torch.device, states: StateCache | None = None
    ) -> None:
        """`states`: what the layers keep of sequences, if they do."""
        self.num_blocks = num_blocks
        self.states = states
        [self.block_size] = {layout.block_size for layout in layouts}
        layers: dict[int, LayerCache] = {}
        pools = []
        for layout in dict.fromkeys(layouts):
            members = [index for index, own in enumerate(layouts) if own == layout]
            pool = make_zeros((len(members), num_blocks, *layout.block_shape), layout.element_type, device)
            if layout.block_bytes:
                pools.append(pool.transpose(0, 1))
            for index, data in zip(members, pool.unbind(0), strict=True):
                own = () if states is None else states.layers[index]
                layers[index] = LayerCache(layout=layout, data=data, states=own)
        self.pools = tuple(pools)
        self.layers = tuple(layers[index] for index in range(len(layouts)))

    def copy(self, copies: Sequence[CopiedBlock], state_copies: Sequence[CopiedBlock] = ()) -> None:
        """Copy blocks; all are read before one is written. Copy states, one after another."""
        if self.states is not None:
            self.states.copy(state_copies)
        if not copies or not self.pools:
            return
        device = self.pools[0].device
        sources, targets = (torch.tensor(ids, dtype=torch.int64, device=device) for ids in zip(*copies, strict=True))
        for pool in self.pools:
            pool.index_copy_(0, targets, pool.index_select(0, sources))

    def clear_states(self, slots: list[int]) -> None:
        """Zero the states of sequences that begin, if there are any."""
        if self.states is not None and slots:
            self.states.clear(slots)

    def clear(self, block_ids: list[int]) -> None:
        """Zero blocks that a sequence begins to fill: a NaN that an earlier owner left in the slots behind its last
        token would get through any mask, because 0 · NaN is NaN."""
        for pool in self.pools:
            pool.index_fill_(0, torch.tensor(block_ids, dtype=torch.int64, device=pool.device), 0)


def make_layouts(
    shapes: Sequence[KVShape], *, block_size: int, dtype: torch.dtype, format: KVFormat = "plain"
) -> tuple[KVLayout, ...]:
    """Return the layout of each layer's cache, of layers whose keys and values have these shapes."""
    return tuple(
        KVLayout(
            format=format,
            dtype=dtype,
            block_size=block_size,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            turned_dim=shape.turned_dim,
        )
        for shape in shapes
    )


def bytes_per_block(layouts: Sequence[KVLayout]) -> int:
    """Bytes of one block in all layers."""
    return sum(layout.block_bytes for layout in layouts)


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

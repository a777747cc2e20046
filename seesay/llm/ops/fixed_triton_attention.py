"""Attention for the deterministic mode by `kernels.attention.fixed_attention`, on the host: tiles and launches.

Few decode rows are divided among programs by their splits, of many each is a program's: that changes no bit.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch

from seesay.kernels.attention.fixed_attention import fixed_attention_kernel, merge_splits_kernel
from seesay.kernels.gpu import has_dependent_launch, has_large_shared_memory, has_ptx, nvidia_options
from seesay.kernels.sizes import power_of_2_from
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.ops.triton_attention import AttentionPlan, Tile, describe_format, pad_dim, tile_dim
from seesay.llm.plans.window import Chunk, Window, find_size

SPLIT_KEYS = 256
"""Keys of a split. Other numbers give other bits."""
WHOLE_PROGRAMS = 264
"""From so many decode programs on, rows are not divided: two per multiprocessor of a large GPU."""
MOST_SPLITS = 1 << 11
"""Most splits of all rows for which there is room: with 28 heads of 128, partial outputs then take 29 MB."""


def attend(
    query: torch.Tensor,
    cache: LayerCache,
    plan: AttentionPlan,
    *,
    scale: float,
    window: Window | None,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
    slopes: torch.Tensor | None,
) -> torch.Tensor:
    """See `Ops.attend`."""
    assert cache.data.is_contiguous() and query.stride(2) == 1 and scale > 0
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    tile = pick_tile(
        query.dtype,
        query.shape[2],
        query.shape[1] // cache.layout.num_kv_heads,
        has_large_shared_memory(query.get_device()),
    )
    is_dependent = has_dependent_launch(query.get_device())
    launch = partial(
        _launch, query, cache, plan, out, tile, scale=scale, window=window, soft_cap=soft_cap, sinks=sinks,
        slopes=slopes, is_dependent=is_dependent,
    )  # fmt: skip
    if plan.num_decode:
        _decode(query, cache, plan, out, sinks, launch, is_dependent=is_dependent)
    if len(query) > plan.num_decode:
        group = query.shape[1] // cache.layout.num_kv_heads
        tokens = tile.rows // group
        first_tile = plan.num_decode // tokens + plan.num_decode
        num_tiles = len(query) // tokens + len(plan.kv_lens) - first_tile
        launch((num_tiles, cache.layout.num_kv_heads), tokens=tokens, first_tile=first_tile)
    return out


def _decode(
    query: torch.Tensor,
    cache: LayerCache,
    plan: AttentionPlan,
    out: torch.Tensor,
    sinks: torch.Tensor | None,
    launch: Any,
    *,
    is_dependent: bool,
) -> None:
    num_rows, num_kv_heads = plan.num_decode, cache.layout.num_kv_heads
    num_heads, head_dim = query.shape[1:]
    max_splits = -(-plan.block_table.shape[1] * cache.layout.block_size // SPLIT_KEYS)
    if num_rows * num_kv_heads >= WHOLE_PROGRAMS or num_rows * max_splits > MOST_SPLITS or max_splits == 1:
        launch((num_rows, num_kv_heads), tokens=1)
        return
    shape = num_rows, max_splits, num_heads
    partials = torch.empty(*shape, head_dim, dtype=torch.float32, device=query.device)
    sums = torch.empty(*shape, 2, dtype=torch.float32, device=query.device)
    launch((num_rows, num_kv_heads, max_splits), tokens=1, max_splits=max_splits, partials=partials, sums=sums)
    merge_splits_kernel[(num_rows, num_heads)](
        plan.kv_lens,
        partials,
        sums,
        sinks,
        out,
        max_splits,
        NUM_HEADS=num_heads,
        DIM=head_dim,
        BLOCK_D=pad_dim(head_dim),
        SPLIT=SPLIT_KEYS,
        IS_DEPENDENT=is_dependent,
        num_warps=1,
        **nvidia_options(launch_pdl=is_dependent),
    )


def _launch(
    query: torch.Tensor,
    cache: LayerCache,
    plan: AttentionPlan,
    out: torch.Tensor,
    tile: Tile,
    grid: tuple[int, ...],
    *,
    scale: float,
    window: Window | None,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
    slopes: torch.Tensor | None,
    is_dependent: bool,
    tokens: int,
    first_tile: int = 0,
    max_splits: int = 0,
    partials: torch.Tensor | None = None,
    sums: torch.Tensor | None = None,
) -> None:
    """Launch the kernel for the decode rows, with one of `tokens`, or for the others."""
    is_decode = tokens == 1 and first_tile == 0 and plan.num_decode > 0
    fixed_attention_kernel[grid](
        query,
        cache.data,
        plan.block_table,
        None if is_decode else plan.cu_seqlens_q,
        plan.kv_lens,
        sinks,
        slopes,
        None if is_decode else plan.run_starts,
        None if is_decode else plan.reaches,
        out,
        partials,
        sums,
        query.stride(0),
        query.stride(1),
        plan.block_table.stride(0),
        first_tile,
        plan.num_decode,
        len(plan.kv_lens),
        max_splits,
        scale,
        0 if window is None else find_size(window),
        soft_cap or 0.0,
        NUM_HEADS=query.shape[1],
        NUM_KV_HEADS=cache.layout.num_kv_heads,
        DIM=query.shape[2],
        **describe_format(cache.layout),
        BLOCK_M=tile.rows,
        BLOCK_N=tile.keys,
        BLOCK_D=tile_dim(cache.layout),
        TOKENS=tokens,
        SPLIT=SPLIT_KEYS,
        IS_DECODE=is_decode,
        IS_SPLIT=partials is not None,
        HAS_WINDOW=window is not None,
        IS_CHUNK=isinstance(window, Chunk),
        HAS_CAP=soft_cap is not None,
        IS_DEPENDENT=is_dependent,
        HAS_PTX=has_ptx(query.get_device()),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **nvidia_options(launch_pdl=is_dependent),
    )


@cache
def pick_tile(dtype: torch.dtype, head_dim: int, group: int, has_room: bool) -> Tile:
    """Return the one tile for prompts and decode rows. has_room: whether shared memory is large."""
    least = power_of_2_from(group)
    if dtype == torch.float32:
        return Tile(rows=max(least, 32 if head_dim <= 128 else 16), keys=32, num_warps=4, num_stages=1)
    if head_dim > 128:
        return Tile(rows=max(least, 64), keys=32, num_warps=4, num_stages=2)
    return Tile(rows=max(least, 64), keys=64, num_warps=4, num_stages=3 if has_room else 2)

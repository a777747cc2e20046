"""Attention over the paged cache, on the host's side: what a step's layers share, the tiles, and the launches.

Decode rows are split over their context where there are few of them (Dao et al. 2023, "Flash-Decoding"); longer rows
are taken in tiles of their tokens. In both, a tile's rows are the query heads of one key-value head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from seesay.device.transfers import upload
from seesay.kernels.attention.attention_splits import combine_kernel, divide_kernel
from seesay.kernels.attention.block_attention import decode_kernel, prefill_kernel
from seesay.kernels.attention.quantized_decode import decode_quantized_kernel
from seesay.kernels.gpu import has_dependent_launch, has_large_shared_memory, has_ptx, nvidia_options
from seesay.kernels.sizes import power_of_2_from
from seesay.llm.memory.kv_layout import KVFormat, KVLayout, LayerCache
from seesay.llm.ops.interface import DecodeRows, RowLayout
from seesay.llm.plans.window import Chunk, Window, find_size

TARGET_PROGRAMS = 396
"""Decode programs worth having at once: three per multiprocessor of a large GPU. Fewer rows are split further."""
WHOLE_PROGRAMS = 448
"""From this many decode programs on, rows of similar lengths are not split."""
MIN_SPLIT_TOKENS = 64
"""Fewest tokens of a split."""
DIVIDE_ELEMENTS = 1 << 13
"""Largest tile, rows times items, when contexts are divided."""
FEW_COMBINED = 1 << 10
"""Rows times heads below which each may take much of the GPU to add its splits up."""
LARGE_PREFILL = 3 << 15
"""New tokens times heads from which prefill takes larger tiles: fewer would not fill the GPU with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """`rows` query rows against `keys` keys at a time. max_registers: of a thread, so that two programs fit on a
    multiprocessor. num_shares: how many programs decode what one of bfloat16 would, if there are so many keys."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int
    max_registers: int | None = None
    num_shares: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Decode rows in splits, for layers of one kind: items int32 [W, 4], parts int32 [B, 2] (see `divide_kernel`), and
    what becomes of a split, partials float32 [W, H, D] and sums float32 [W, H, 2]."""

    items: torch.Tensor
    parts: torch.Tensor
    partials: torch.Tensor
    sums: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """A step's rows, on the device: cu_seqlens_q int32 [B + 1], unless all have one token; kv_lens int32 [B];
    block_table int32 [B, M]; run_starts, reaches int32 [T], the first and the last place of
    each token's run. `work` is filled by the first layer of each kind."""

    cu_seqlens_q: torch.Tensor | None
    kv_lens: torch.Tensor
    block_table: torch.Tensor
    num_decode: int
    run_starts: torch.Tensor | None = None
    reaches: torch.Tensor | None = None
    work: dict[tuple[int, int, Window | None, int, int], Work] = field(default_factory=dict)


def make_plan(layout: RowLayout | DecodeRows, device: torch.device) -> AttentionPlan:
    """Start one copy to the device without waiting for it; none for rows that are there."""
    if isinstance(layout, DecodeRows):
        return AttentionPlan(
            cu_seqlens_q=None,
            kv_lens=layout.kv_lens,
            block_table=layout.block_table,
            num_decode=len(layout.kv_lens),
        )
    arrays = [layout.cu_seqlens_q, layout.kv_lens, layout.block_table]
    if layout.runs is not None:
        arrays += [*layout.runs]
    # Each begins at a multiple of 16 bytes: Triton compiles kernels anew for pointers that do not.
    cu_seqlens_q, kv_lens, block_table, *runs = upload([array.astype(np.int32) for array in arrays], device)
    return AttentionPlan(
        cu_seqlens_q=cu_seqlens_q,
        kv_lens=kv_lens,
        block_table=block_table,
        num_decode=layout.num_decode,
        run_starts=runs[0] if runs else None,
        reaches=runs[1] if runs else None,
    )


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
    if plan.num_decode:
        _decode(query, cache, plan, out, scale=scale, window=window, soft_cap=soft_cap, sinks=sinks, slopes=slopes)
    if len(query) > plan.num_decode:
        _prefill(query, cache, plan, out, scale=scale, window=window, soft_cap=soft_cap, sinks=sinks, slopes=slopes)
    return out


def _decode(
    query: torch.Tensor,
    cache: LayerCache,
    plan: AttentionPlan,
    out: torch.Tensor,
    *,
    scale: float,
    window: Window | None,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
    slopes: torch.Tensor | None,
) -> None:
    num_heads, head_dim = query.shape[1:]
    num_kv_heads = cache.layout.num_kv_heads
    index = query.get_device()
    has_room = has_large_shared_memory(index)
    tile = _pick_decode_tile(query.dtype, num_heads // num_kv_heads, has_room, cache.layout)
    is_dependent = has_dependent_launch(index)
    kind = (num_heads, head_dim, window, tile.keys, tile.num_shares)
    work = plan.work.get(kind)
    if work is None:
        work = plan.work[kind] = divide(
            plan, num_heads, num_kv_heads, head_dim, window, tile.keys, num_shares=tile.num_shares
        )
    kernel, blocks = decode_kernel, {"BLOCK_SIZE": cache.layout.block_size}
    if cache.layout.format != "plain":
        kernel, blocks = decode_quantized_kernel, {**describe_format(cache.layout), "HAS_PTX": has_ptx(index)}
    kernel[(num_kv_heads, len(work.items))](
        query,
        cache.data,
        plan.block_table,
        plan.kv_lens,
        work.items,
        sinks,
        slopes,
        out,
        work.partials,
        work.sums,
        query.stride(0),
        query.stride(1),
        plan.block_table.stride(0),
        scale,
        0 if window is None else find_size(window),
        soft_cap or 0.0,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        DIM=head_dim,
        **blocks,
        BLOCK_M=tile.rows,
        BLOCK_N=tile.keys,
        BLOCK_D=tile_dim(cache.layout),
        HAS_WINDOW=window is not None,
        IS_CHUNK=isinstance(window, Chunk),
        HAS_CAP=soft_cap is not None,
        IS_DEPENDENT=is_dependent,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **nvidia_options(launch_pdl=is_dependent),
    )
    is_few = plan.num_decode * num_heads < FEW_COMBINED
    is_whole = plan.num_decode >= _whole_rows(num_kv_heads, 1)
    heads = num_heads // num_kv_heads if is_whole else 1
    combine_kernel[(plan.num_decode, num_heads // heads)](
        work.parts,
        work.partials,
        work.sums,
        out,
        NUM_HEADS=num_heads,
        DIM=head_dim,
        HEADS=heads,
        BLOCK_S=64 if is_few else 16,
        BLOCK_D=pad_dim(head_dim),
        IS_DEPENDENT=is_dependent,
        num_warps=2 if is_few else 1,
        **nvidia_options(launch_pdl=is_dependent),
    )


def divide(
    plan: AttentionPlan,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    window: Window | None,
    keys: int,
    *,
    num_shares: int = 1,
) -> Work:
    """Divide the contexts of the decode rows, for layers of one kind. num_shares: see `Tile`."""
    num_rows, device = plan.num_decode, plan.kv_lens.device
    wanted_items = -(-num_shares * TARGET_PROGRAMS // num_kv_heads)
    num_items = num_rows + wanted_items
    items = torch.empty(num_items, 4, dtype=torch.int32, device=device)
    parts = torch.empty(num_rows, 2, dtype=torch.int32, device=device)
    block_rows = power_of_2_from(num_rows)
    block_items = max(1, min(64, DIVIDE_ELEMENTS // block_rows))
    divide_kernel[(-(-num_items // block_items),)](
        plan.kv_lens,
        items,
        parts,
        num_rows,
        num_items,
        wanted_items,
        _whole_rows(num_kv_heads, num_shares),
        num_shares * MIN_SPLIT_TOKENS,
        0 if window is None else find_size(window),
        BLOCK_B=block_rows,
        BLOCK_W=block_items,
        BLOCK_N=keys,
        HAS_WINDOW=window is not None,
        IS_CHUNK=isinstance(window, Chunk),
    )
    partials = torch.empty(num_items, num_heads, head_dim, dtype=torch.float32, device=device)
    sums = torch.empty(num_items, num_heads, 2, dtype=torch.float32, device=device)
    return Work(items=items, parts=parts, partials=partials, sums=sums)


def _whole_rows(num_kv_heads: int, num_shares: int) -> int:
    return -(-num_shares * WHOLE_PROGRAMS // num_kv_heads)


def _prefill(
    query: torch.Tensor,
    cache: LayerCache,
    plan: AttentionPlan,
    out: torch.Tensor,
    *,
    scale: float,
    window: Window | None,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
    slopes: torch.Tensor | None,
) -> None:
    assert plan.cu_seqlens_q is not None
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, num_rows, num_decode = cache.layout.num_kv_heads, len(plan.kv_lens), plan.num_decode
    group = num_heads // num_kv_heads
    is_large = (num_tokens - num_decode) * num_heads >= LARGE_PREFILL
    index = query.get_device()
    has_room = has_large_shared_memory(index)
    tile = _prefill_tile(query.dtype, head_dim, group, is_large, has_room, cache.layout.format)
    is_dependent = has_dependent_launch(index)
    tokens = tile.rows // group
    first_tile = num_decode // tokens + num_decode
    num_tiles = num_tokens // tokens + num_rows - first_tile
    prefill_kernel[(num_tiles, num_kv_heads)](
        query,
        cache.data,
        plan.block_table,
        plan.cu_seqlens_q,
        plan.kv_lens,
        sinks,
        slopes,
        plan.run_starts,
        plan.reaches,
        out,
        query.stride(0),
        query.stride(1),
        plan.block_table.stride(0),
        first_tile,
        num_decode,
        num_rows,
        scale,
        0 if window is None else find_size(window),
        soft_cap or 0.0,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        DIM=head_dim,
        **describe_format(cache.layout),
        BLOCK_M=tile.rows,
        BLOCK_N=tile.keys,
        BLOCK_D=tile_dim(cache.layout),
        TOKENS=tokens,
        HAS_WINDOW=window is not None,
        IS_CHUNK=isinstance(window, Chunk),
        HAS_CAP=soft_cap is not None,
        IS_DEPENDENT=is_dependent,
        HAS_PTX=has_ptx(index),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **nvidia_options(maxnreg=tile.max_registers, launch_pdl=is_dependent),
    )


@cache
def describe_format(layout: KVLayout) -> Mapping[str, Any]:
    """Return the kernels' arguments for a layout."""
    is_plain = layout.format == "plain"
    return {
        "KV": layout.format,
        "BLOCK_SIZE": layout.block_size,
        "BLOCK_BYTES": layout.block_bytes,
        "PARAMS_AT": 0 if is_plain else layout.params_at,
    }


def tile_dim(layout: KVLayout) -> int:
    """Components in a tile: of int4, two halves are two tiles."""
    return pad_dim(layout.head_dim // 2 if layout.format == "int4" else layout.head_dim)


def pad_dim(head_dim: int) -> int:
    return max(16, power_of_2_from(head_dim))


@cache
def _pick_decode_tile(dtype: torch.dtype, group: int, has_room: bool, layout: KVLayout) -> Tile:
    if layout.format != "plain":
        return _quantized_decode_tile(dtype, max(8, power_of_2_from(group)), has_room, layout)
    rows = max(16, power_of_2_from(group))
    if dtype == torch.float32 or layout.head_dim > 128:
        return Tile(rows=rows, keys=32, num_warps=4, num_stages=2)
    return Tile(rows=rows, keys=64, num_warps=2 if rows == 16 else 4, num_stages=3 if has_room else 2)


def _quantized_decode_tile(dtype: torch.dtype, rows: int, has_room: bool, layout: KVLayout) -> Tile:
    """Return the tile that was the fastest of 74 on an H200, for 28 heads on 4 of 128. Larger groups have more warps,
    among which their output is divided; so have tiles that lie in several blocks or end inside a vector's padding,
    whose pointers take registers."""
    if dtype == torch.float32 or layout.head_dim > 128:
        return Tile(rows=rows, keys=32, num_warps=4, num_stages=2)
    most_stages = 6 if has_room else 3
    is_simple = layout.block_size % 64 == 0 and layout.head_dim == power_of_2_from(layout.head_dim)
    if rows > 8 or not is_simple:
        return Tile(rows=rows, keys=64, num_warps=4, num_stages=most_stages)
    if layout.format == "fp8":
        return Tile(rows=rows, keys=64, num_warps=2, num_stages=most_stages)
    num_warps, num_stages = (1, 6) if layout.format == "int4" else (2, 4)
    return Tile(rows=rows, keys=64, num_warps=num_warps, num_stages=min(num_stages, most_stages), num_shares=2)


@cache
def _prefill_tile(
    dtype: torch.dtype, head_dim: int, group: int, is_large: bool, has_room: bool, format: KVFormat
) -> Tile:
    """has_room: whether shared memory is large (see `has_large_shared_memory`)."""
    least, num_stages = power_of_2_from(group), 3 if has_room else 2
    if dtype == torch.float32:
        return Tile(rows=max(least, 32 if head_dim <= 128 else 16), keys=32, num_warps=4, num_stages=1)
    if head_dim > 128:
        rows, num_warps = (128, 8) if has_room else (64, 4)
        return Tile(rows=max(least, rows), keys=32, num_warps=num_warps, num_stages=2)
    if is_large and format != "plain":  # unpacked tiles leave no registers for a second program
        return Tile(rows=max(least, 128), keys=64, num_warps=8, num_stages=num_stages)
    if is_large:
        return Tile(rows=max(least, 128), keys=64, num_warps=8, num_stages=num_stages, max_registers=128)
    return Tile(rows=max(least, 64), keys=64, num_warps=4, num_stages=num_stages)

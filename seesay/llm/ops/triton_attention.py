"""Attention over the paged cache, on the host's side: what a step's layers share, the tiles, and the launches.

Decode rows are split over their context where there are few of them (Dao et al. 2023, "Flash-Decoding"); longer rows
are taken in tiles of their tokens. In both, a tile's rows are the query heads of one key-value head.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
import triton

from seesay.device import upload
from seesay.llm.ops.interface import DecodeRows, RowLayout
from seesay.llm.ops.triton_attention_kernels import combine_kernel, decode_kernel, prefill_kernel

TARGET_PROGRAMS = 528
"""Decode programs worth having at once: four per multiprocessor of a large GPU. Fewer rows are split further."""
LONG_PREFILL_TOKENS = 1 << 12
"""New tokens per row from which prefill takes larger tiles: shorter rows lose more at their ends than they gain."""
MIN_SPLIT_TOKENS = 64
"""Fewest tokens of a split."""
GRAPH_SPLITS = 16
"""Splits that a CUDA graph for few rows has at least: one row may be much longer than the others. Those that a row does
not need cost next to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tile:
    """`rows` query rows against `keys` keys at a time."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Splits:
    """Each decode row's context in up to `count` splits of `tokens` or more, and their partial results, if there are
    several."""

    tokens: int
    count: int
    partials: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """A step's rows: on the device cu_seqlens_q int32 [B + 1], kv_lens int32 [B], block_table int32 [B, M]; on the
    host what the grids need, of rows that only the device knows whether they are even. `splits` is filled by the first
    layer of each kind."""

    cu_seqlens_q: torch.Tensor | None
    kv_lens: torch.Tensor
    block_table: torch.Tensor
    num_decode: int
    decode_lens_cpu: npt.NDArray[np.int64] | None
    is_even: bool = False
    splits: dict[tuple[int, int, int | None], _Splits] = field(default_factory=dict)


def make_plan(layout: RowLayout | DecodeRows, device: torch.device) -> AttentionPlan:
    """One copy to the device, which nobody waits for; none for rows that are there."""
    if isinstance(layout, DecodeRows):
        return AttentionPlan(
            cu_seqlens_q=None,
            kv_lens=layout.kv_lens,
            block_table=layout.block_table,
            num_decode=len(layout.kv_lens),
            decode_lens_cpu=None,
            is_even=layout.is_even,
        )
    num_rows = len(layout.kv_lens)
    packed = np.concatenate((layout.cu_seqlens_q, layout.kv_lens, layout.block_table.reshape(-1))).astype(np.int32)
    [there] = upload([packed], device)
    return AttentionPlan(
        cu_seqlens_q=there[: num_rows + 1],
        kv_lens=there[num_rows + 1 : 2 * num_rows + 1],
        block_table=there[2 * num_rows + 1 :].view(layout.block_table.shape),
        num_decode=layout.num_decode,
        decode_lens_cpu=layout.kv_lens[: layout.num_decode],
    )


def attend(
    query: torch.Tensor,
    cache: torch.Tensor,
    plan: AttentionPlan,
    *,
    scale: float,
    window: int | None,
    soft_cap: float | None,
) -> torch.Tensor:
    """See `Ops.attend`."""
    assert cache.is_contiguous() and query.stride(2) == 1 and scale > 0
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if plan.num_decode:
        _decode(query, cache, plan, out, scale=scale, window=window, soft_cap=soft_cap)
    if len(query) > plan.num_decode:
        _prefill(query, cache, plan, out, scale=scale, window=window, soft_cap=soft_cap)
    return out


def _decode(
    query: torch.Tensor,
    cache: torch.Tensor,
    plan: AttentionPlan,
    out: torch.Tensor,
    *,
    scale: float,
    window: int | None,
    soft_cap: float | None,
) -> None:
    num_heads, head_dim = query.shape[1:]
    num_kv_heads = cache.shape[3]
    group = num_heads // num_kv_heads
    tile = _decode_tile(query.dtype, head_dim, group)
    splits = _plan_splits(plan, num_heads, num_kv_heads, head_dim, window, tile.keys)
    decode_kernel[(plan.num_decode, num_kv_heads, splits.count)](
        query,
        cache,
        plan.block_table,
        plan.kv_lens,
        out,
        splits.partials,
        splits.weights,
        query.stride(0),
        query.stride(1),
        plan.block_table.stride(0),
        splits.tokens,
        scale,
        window or 0,
        soft_cap or 0.0,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        DIM=head_dim,
        BLOCK_SIZE=cache.shape[1],
        BLOCK_M=tile.rows,
        BLOCK_N=tile.keys,
        BLOCK_D=_padded_dim(head_dim),
        HAS_WINDOW=window is not None,
        HAS_CAP=soft_cap is not None,
        IS_DEPENDENT=query.is_cuda,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        launch_pdl=query.is_cuda,
    )
    if splits.count > 1:
        combine_kernel[(plan.num_decode, num_heads)](
            splits.partials,
            splits.weights,
            plan.kv_lens,
            out,
            splits.count,
            splits.tokens,
            window or 0,
            NUM_HEADS=num_heads,
            DIM=head_dim,
            BLOCK_N=tile.keys,
            BLOCK_S=16,
            BLOCK_D=_padded_dim(head_dim),
            HAS_WINDOW=window is not None,
            IS_DEPENDENT=query.is_cuda,
            launch_pdl=query.is_cuda,
        )


def _plan_splits(
    plan: AttentionPlan, num_heads: int, num_kv_heads: int, head_dim: int, window: int | None, keys: int
) -> _Splits:
    """The splits of all decode rows in layers of one kind."""
    kind = (num_heads, head_dim, window)
    splits = plan.splits.get(kind)
    if splits is not None:
        return splits
    if plan.decode_lens_cpu is None:
        tokens, count = _divide_unknown(plan.num_decode * num_kv_heads, plan.is_even, keys)
    else:
        tokens, count = _divide_known(plan.decode_lens_cpu, num_kv_heads, window, keys)
    shape = (plan.num_decode, num_heads, count) if count > 1 else (0,)
    partials = torch.empty((*shape, head_dim), dtype=torch.float32, device=plan.kv_lens.device)
    weights = torch.empty((*shape, 2), dtype=torch.float32, device=plan.kv_lens.device)
    splits = plan.splits[kind] = _Splits(tokens=tokens, count=count, partials=partials, weights=weights)
    return splits


def _divide_known(lens: npt.NDArray[np.int64], num_kv_heads: int, window: int | None, keys: int) -> tuple[int, int]:
    """(tokens, number) of splits for rows of these lengths: of equal length, so that long rows among short ones get
    more of them."""
    lens = lens if window is None else np.minimum(lens, window)
    share = -(-int(lens.sum()) * num_kv_heads // TARGET_PROGRAMS)
    tokens = -(-max(share, MIN_SPLIT_TOKENS) // keys) * keys
    longest = int(lens.max()) + (0 if window is None else keys)
    count = -(-longest // tokens)
    if count > 1 and len(lens) * num_kv_heads >= TARGET_PROGRAMS and longest <= 2 * int(lens.mean()):
        return -(-longest // keys) * keys, 1
    return tokens, count


def _divide_unknown(num_programs: int, is_even: bool, keys: int) -> tuple[int, int]:
    """(least tokens, number) of splits for rows of any length; `num_programs` is that of undivided rows."""
    if is_even and num_programs >= TARGET_PROGRAMS:
        return keys, 1
    tokens = MIN_SPLIT_TOKENS * min(16, max(1, num_programs // 32))
    return -(-tokens // keys) * keys, max(-(-TARGET_PROGRAMS // num_programs), GRAPH_SPLITS)


def _prefill(
    query: torch.Tensor,
    cache: torch.Tensor,
    plan: AttentionPlan,
    out: torch.Tensor,
    *,
    scale: float,
    window: int | None,
    soft_cap: float | None,
) -> None:
    assert plan.cu_seqlens_q is not None
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, num_rows, num_decode = cache.shape[3], len(plan.kv_lens), plan.num_decode
    group = num_heads // num_kv_heads
    is_long = num_tokens - num_decode >= LONG_PREFILL_TOKENS * (num_rows - num_decode)
    tile = _prefill_tile(query.dtype, head_dim, group, is_long)
    tokens = tile.rows // group
    first_tile = num_decode // tokens + num_decode
    num_tiles = num_tokens // tokens + num_rows - first_tile
    prefill_kernel[(num_tiles, num_kv_heads)](
        query,
        cache,
        plan.block_table,
        plan.cu_seqlens_q,
        plan.kv_lens,
        out,
        query.stride(0),
        query.stride(1),
        plan.block_table.stride(0),
        first_tile,
        num_decode,
        num_rows,
        scale,
        window or 0,
        soft_cap or 0.0,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        DIM=head_dim,
        BLOCK_SIZE=cache.shape[1],
        BLOCK_M=tile.rows,
        BLOCK_N=tile.keys,
        BLOCK_D=_padded_dim(head_dim),
        TOKENS=tokens,
        HAS_WINDOW=window is not None,
        HAS_CAP=soft_cap is not None,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


@cache
def _padded_dim(head_dim: int) -> int:
    return max(16, int(triton.next_power_of_2(head_dim)))


@cache
def _decode_tile(dtype: torch.dtype, head_dim: int, group: int) -> _Tile:
    rows = max(16, int(triton.next_power_of_2(group)))
    if dtype == torch.float32 or head_dim > 128:
        return _Tile(rows=rows, keys=32, num_warps=4, num_stages=2)
    return _Tile(rows=rows, keys=64, num_warps=2 if rows == 16 else 4, num_stages=3)


@cache
def _prefill_tile(dtype: torch.dtype, head_dim: int, group: int, is_long: bool) -> _Tile:
    least = int(triton.next_power_of_2(group))
    if dtype == torch.float32:
        return _Tile(rows=max(least, 32 if head_dim <= 128 else 16), keys=32, num_warps=4, num_stages=1)
    if head_dim > 128:
        return _Tile(rows=max(least, 128), keys=32, num_warps=8, num_stages=2)
    if is_long:
        return _Tile(rows=max(least, 128), keys=128, num_warps=8, num_stages=3)
    return _Tile(rows=max(least, 64), keys=64, num_warps=4, num_stages=3)

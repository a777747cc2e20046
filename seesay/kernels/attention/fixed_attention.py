"""Attention over the paged cache whose result for a token has the same bits whatever tokens are computed beside it: for
the deterministic mode. Prompts and decode rows take one kernel, with one tile.

Keys are divided into splits of SPLIT places, from the first place of a sequence on. Each split is attended to on its
own, and splits are merged one after another, in the same program or in a kernel of its own: `_merge` is the same in
both, and leaves nothing to the compiler that could be rounded otherwise. Keys are masked everywhere, so that no tile
takes another path.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from seesay.kernels.attention.block_attention import attend_keys
from seesay.kernels.attention.online_softmax import find_window

NVIDIA_ALONE = True
"""The mode is refused on other GPUs: nobody has compared bits there."""


@triton.jit
def _merge(top, total, output, output_high, part_top, part_total, part, part_high, HAS_HIGH: tl.constexpr):
    """Merge a split into what the splits before it gave: maxima and sums [M], outputs [M, D] that are not yet divided;
    those of the split are. A split without keys changes no bit."""
    new_top = tl.maximum(top, part_top)
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    fade = tl.exp2(top - base)
    weight = part_total * tl.exp2(part_top - base)
    total = tl.fma(total, fade, weight)
    fades = tl.broadcast_to(fade[:, None], output.shape)
    output = tl.fma(output, fades, part * weight[:, None])
    if HAS_HIGH:
        output_high = tl.fma(output_high, fades, part_high * weight[:, None])
    return new_top, total, output, output_high


@triton.jit(do_not_specialize=["table_stride", "first_tile", "num_decode", "num_rows", "max_splits"])
def fixed_attention_kernel(
    query_ptr,
    cache_ptr,
    table_ptr,
    cu_seqlens_ptr,
    lens_ptr,
    sinks_ptr,
    slopes_ptr,
    run_starts_ptr,
    reaches_ptr,
    out_ptr,
    partials_ptr,
    sums_ptr,
    token_stride,
    head_stride,
    table_stride,
    first_tile,
    num_decode,
    num_rows,
    max_splits,
    scale,
    window,
    soft_cap,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KV: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
    PARAMS_AT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TOKENS: tl.constexpr,
    SPLIT: tl.constexpr,
    IS_DECODE: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    IS_CHUNK: tl.constexpr,
    HAS_CAP: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
    HAS_PTX: tl.constexpr,
):
    """Program (i, g) computes TOKENS tokens of a row, with the query heads of key-value head g packed into the tile;
    see `prefill_kernel`. IS_DECODE: row i, which has one token. IS_SPLIT: program (i, g, s) computes split s of that,
    and writes the partial output [B, max_splits, H, D] and (maximum, sum) [B, max_splits, H, 2].
    """
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    kv_head = tl.program_id(1)
    if IS_DECODE:
        row = tl.program_id(0)
        start = row
        num_new = 1
        first_token = 0
    else:
        tile = first_tile + tl.num_programs(0) - 1 - tl.program_id(0)
        row = num_decode
        high = num_rows
        while high - row > 1:
            middle = (row + high) // 2
            begins = tl.load(cu_seqlens_ptr + middle) // TOKENS + middle
            row = tl.where(begins <= tile, middle, row)
            high = tl.where(begins <= tile, high, middle)
        start = tl.load(cu_seqlens_ptr + row)
        num_new = tl.load(cu_seqlens_ptr + row + 1) - start
        first_token = (tile - start // TOKENS - row) * TOKENS
        if first_token >= num_new:
            return
    kv_len = tl.load(lens_ptr + row)
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    ROW: tl.constexpr = DIM // 2 if KV == "int4" else DIM
    members = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    tokens = first_token + members // GROUP
    heads = kv_head * GROUP + members % GROUP
    is_member = (members < TOKENS * GROUP) & (tokens < num_new)
    is_inside = is_member[:, None] & (dims < ROW)[None, :]
    rows = (start + tokens).to(tl.int64)
    query_places = query_ptr + rows[:, None] * token_stride + heads[:, None] * head_stride + dims[None, :]
    positions = kv_len - num_new + tokens
    lowest = kv_len - num_new + first_token
    stop = tl.minimum(kv_len, lowest + TOKENS)
    reaches = positions
    if reaches_ptr is not None:
        reaches = tl.load(reaches_ptr + rows, mask=tokens < num_new, other=0)
        stop = tl.minimum(kv_len, tl.max(reaches, axis=0) + 1)
    begin = lowest * 0
    if HAS_WINDOW:
        if run_starts_ptr is not None:  # the window of a token reaches back to the beginning of its run at least
            begins = tl.load(run_starts_ptr + rows, mask=tokens < num_new, other=1 << 30)
            windows = tl.maximum(find_window(window, positions, IS_CHUNK), positions - begins + 1)
            begin = tl.maximum(tl.min(positions - windows, axis=0) + 1, 0) // BLOCK_N * BLOCK_N
            window = windows[:, None]
        else:
            begin = tl.maximum(lowest - find_window(window, lowest, IS_CHUNK) + 1, 0) // BLOCK_N * BLOCK_N
            if IS_CHUNK:
                window = find_window(window, positions, IS_CHUNK)[:, None]
    slopes = None
    if slopes_ptr is not None:
        slopes = tl.load(slopes_ptr + heads)
    own_table = table_ptr + row.to(tl.int64) * table_stride
    nothing = tl.full([BLOCK_M], float("-inf"), tl.float32)
    zeros = tl.zeros([BLOCK_M], tl.float32)
    if IS_SPLIT:
        split = tl.program_id(2)
        if split * SPLIT >= stop:
            return
        first = tl.maximum(split * SPLIT, begin)
        end = tl.minimum(split * SPLIT + SPLIT, stop)
        output, output_high, top, total = attend_keys(
            query_places, is_inside, cache_ptr, own_table, first, first, end, positions, reaches, kv_len, kv_head,
            nothing, zeros, slopes, scale, window, soft_cap, KV, NUM_KV_HEADS, DIM, BLOCK_SIZE, BLOCK_BYTES, PARAMS_AT,
            BLOCK_M, BLOCK_N, BLOCK_D, HAS_WINDOW, HAS_CAP, HAS_PTX,
        )  # fmt: skip
        parts = (row.to(tl.int64) * max_splits + split) * NUM_HEADS + heads
        targets = partials_ptr + parts[:, None] * DIM + dims[None, :]
        tl.store(targets, output, mask=is_inside)
        if KV == "int4":
            tl.store(targets + ROW, output_high, mask=is_inside)
        tl.store(sums_ptr + parts * 2, top, mask=is_member)
        tl.store(sums_ptr + parts * 2 + 1, total, mask=is_member)
    else:
        top = nothing
        total = zeros
        if sinks_ptr is not None:
            top = tl.load(sinks_ptr + heads).to(tl.float32) * 1.4426950408889634
            total += 1.0
        output = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        output_high = output
        for split in range(begin // SPLIT, (stop + SPLIT - 1) // SPLIT):
            first = tl.maximum(split * SPLIT, begin)
            end = tl.minimum(split * SPLIT + SPLIT, stop)
            part, part_high, part_top, part_total = attend_keys(
                query_places, is_inside, cache_ptr, own_table, first, first, end, positions, reaches, kv_len, kv_head,
                nothing, zeros, slopes, scale, window, soft_cap, KV, NUM_KV_HEADS, DIM, BLOCK_SIZE, BLOCK_BYTES,
                PARAMS_AT, BLOCK_M, BLOCK_N, BLOCK_D, HAS_WINDOW, HAS_CAP, HAS_PTX,
            )  # fmt: skip
            top, total, output, output_high = _merge(
                top, total, output, output_high, part_top, part_total, part, part_high, KV == "int4"
            )
        divisor = tl.where(total == 0.0, 1.0, total)[:, None]
        places = out_ptr + (rows * NUM_HEADS + heads)[:, None] * DIM + dims[None, :]
        tl.store(places, (output / divisor).to(out_ptr.dtype.element_ty), mask=is_inside)
        if KV == "int4":
            tl.store(places + ROW, (output_high / divisor).to(out_ptr.dtype.element_ty), mask=is_inside)


@triton.jit(do_not_specialize=["max_splits"])
def merge_splits_kernel(
    lens_ptr,
    partials_ptr,
    sums_ptr,
    sinks_ptr,
    out_ptr,
    max_splits,
    NUM_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLIT: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program (b, h) merges the splits of head h of row b, in their order."""
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dims = tl.arange(0, BLOCK_D)
    one = tl.arange(0, 1)
    is_dim = (dims < DIM)[None, :] & (one == 0)[:, None]
    top = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    if sinks_ptr is not None:
        top = tl.load(sinks_ptr + head + one).to(tl.float32) * 1.4426950408889634
        total += 1.0
    output = tl.zeros([1, BLOCK_D], tl.float32)
    num_splits = (tl.load(lens_ptr + row) + SPLIT - 1) // SPLIT
    for split in range(0, num_splits):
        places = (row * max_splits + split) * NUM_HEADS + head + one
        part = tl.load(partials_ptr + places[:, None] * DIM + dims[None, :], mask=is_dim, other=0.0)
        part_top = tl.load(sums_ptr + places * 2)
        part_total = tl.load(sums_ptr + places * 2 + 1)
        top, total, output, _ = _merge(top, total, output, output, part_top, part_total, part, part, False)
    divisor = tl.where(total == 0.0, 1.0, total)[:, None]
    places = out_ptr + (row * NUM_HEADS + head + one)[:, None] * DIM + dims[None, :]
    tl.store(places, (output / divisor).to(out_ptr.dtype.element_ty), mask=is_dim)

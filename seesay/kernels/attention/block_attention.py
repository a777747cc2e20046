"""Triton kernels of attention over the paged cache: KV is its format, "plain" blocks [num_blocks, BLOCK_SIZE, 2,
NUM_KV_HEADS, DIM], or quantized ones of BLOCK_BYTES with parameters from byte PARAMS_AT on (`quantized_kv`).

Softmax is computed one tile of keys at a time (`online_softmax`; Dao et al. 2022).
Positions after a row's last token are masked, so stale data in a block has no effect.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from seesay.kernels.attention.online_softmax import cap_scores, find_bias, find_window, hide_scores, weigh_scores
from seesay.kernels.attention.quantized_kv import attend_quantized


@triton.jit
def _add_tile(
    query,
    top,
    total,
    output,
    cache_ptr,
    table_ptr,
    first,
    positions,
    reaches,
    kv_len,
    kv_head,
    slopes,
    scale,
    window,
    soft_cap,
    NUM_KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MASKED: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
):
    """Add keys first … first + BLOCK_N - 1 to the running maximum, sum and output of each query row.

    Without MASKED, every row attends to all of these keys. If the block size is a multiple of BLOCK_N, a tile lies in
    one block.
    """
    steps = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)
    keys = first + steps
    slot_size: tl.constexpr = 2 * NUM_KV_HEADS * DIM
    if BLOCK_SIZE % BLOCK_N == 0:
        block = tl.load(table_ptr + first // BLOCK_SIZE).to(tl.int64)
        tile_ptr = cache_ptr + (block * BLOCK_SIZE + first % BLOCK_SIZE) * slot_size + kv_head * DIM
        pointers = tile_ptr + steps[:, None] * slot_size + dims[None, :]
    else:
        blocks = tl.load(table_ptr + keys // BLOCK_SIZE, mask=keys < kv_len, other=0).to(tl.int64)
        slots = blocks * BLOCK_SIZE + keys % BLOCK_SIZE
        pointers = cache_ptr + kv_head * DIM + slots[:, None] * slot_size + dims[None, :]
    is_there = (keys < kv_len)[:, None] & (dims < DIM)[None, :]
    if MASKED:
        key = tl.load(pointers, mask=is_there, other=0.0)
    elif DIM != BLOCK_D:
        key = tl.load(pointers, mask=(dims < DIM)[None, :], other=0.0)
    else:
        key = tl.load(pointers)
    scores = tl.dot(query, tl.trans(key), input_precision="ieee")
    if HAS_CAP:
        scores = cap_scores(scores, scale, soft_cap)
        factor = 1.4426950408889634
    else:
        factor = scale * 1.4426950408889634
    if slopes is not None:
        bias = find_bias(slopes[:, None], keys[None, :], positions[:, None], scale)
        scores = scores * factor + bias
        factor = 1.0
    if MASKED:
        scores = hide_scores(scores, keys, kv_len, positions, reaches, window, HAS_WINDOW)
    weights, fade, top, total = weigh_scores(scores, factor, top, total, MASKED)
    pointers = pointers + NUM_KV_HEADS * DIM
    if MASKED:
        value = tl.load(pointers, mask=is_there, other=0.0)
    elif DIM != BLOCK_D:
        value = tl.load(pointers, mask=(dims < DIM)[None, :], other=0.0)
    else:
        value = tl.load(pointers)
    output = output * fade[:, None]
    output = tl.dot(weights.to(value.dtype), value, output, input_precision="ieee")
    return top, total, output


@triton.jit
def attend_keys(
    query_places,
    is_inside,
    cache_ptr,
    table_ptr,
    start,
    full,
    stop,
    positions,
    reaches,
    kv_len,
    kv_head,
    top,
    total,
    slopes,
    scale,
    window,
    soft_cap,
    KV: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
    PARAMS_AT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_PTX: tl.constexpr,
):
    """Attend to keys start … stop - 1; all rows see those before `full`, unless HAS_WINDOW. Return the output
    [BLOCK_M, BLOCK_D] and its second half (int4 only, where `query_places` is the first half); the maximum; the
    sum."""
    output_high = 0.0
    if KV == "plain":
        query = tl.load(query_places, mask=is_inside, other=0.0)
        output = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        if not HAS_WINDOW:
            for first in range(start, full, BLOCK_N):
                top, total, output = _add_tile(
                    query, top, total, output, cache_ptr, table_ptr, first, positions, reaches, kv_len, kv_head, slopes,
                    scale, window, soft_cap, NUM_KV_HEADS, DIM, BLOCK_SIZE, BLOCK_N, BLOCK_D, False, HAS_WINDOW,
                    HAS_CAP,
                )  # fmt: skip
        for first in range(full, stop, BLOCK_N):
            top, total, output = _add_tile(
                query, top, total, output, cache_ptr, table_ptr, first, positions, reaches, kv_len, kv_head, slopes,
                scale, window, soft_cap, NUM_KV_HEADS, DIM, BLOCK_SIZE, BLOCK_N, BLOCK_D, True, HAS_WINDOW, HAS_CAP,
            )  # fmt: skip
    else:
        output, output_high, top, total = attend_quantized(
            query_places, is_inside, cache_ptr, table_ptr, start, full, stop, positions, reaches, kv_len, kv_head, top,
            total, slopes, scale, window, soft_cap, KV, NUM_KV_HEADS, DIM, BLOCK_SIZE, BLOCK_BYTES, PARAMS_AT, BLOCK_M,
            BLOCK_N, BLOCK_D, HAS_WINDOW, HAS_CAP, HAS_PTX,
        )  # fmt: skip
    output = output / tl.where(total == 0.0, 1.0, total)[:, None]
    if KV == "int4":
        output_high = output_high / tl.where(total == 0.0, 1.0, total)[:, None]
    return output, output_high, top, total


@triton.jit(do_not_specialize=["table_stride"])
def decode_kernel(
    query_ptr,
    cache_ptr,
    table_ptr,
    lens_ptr,
    items_ptr,
    sinks_ptr,
    slopes_ptr,
    out_ptr,
    partials_ptr,
    sums_ptr,
    token_stride,
    head_stride,
    table_stride,
    scale,
    window,
    soft_cap,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    IS_CHUNK: tl.constexpr,
    HAS_CAP: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program (g, i) computes item i of W (see `divide_kernel`) for the query heads of key-value head g, over plain
    blocks; `quantized_decode` has the kernel for quantized ones. Unused items
    are last, so that the others are spread evenly over the multiprocessors.

    Sinks [H] are the scores of one additional key without a value; the first split of a row adds them. Slopes [H] are
    those of ALiBi. A row's only split writes the output. Each of several splits writes a partial output [W, H, D] and
    (maximum, sum) [W, H, 2].
    """
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    kv_head = tl.program_id(0)
    item = tl.program_id(1).to(tl.int64)
    row = tl.load(items_ptr + item * 4).to(tl.int64)
    start = tl.load(items_ptr + item * 4 + 1)
    stop = tl.load(items_ptr + item * 4 + 2)
    num_splits = tl.load(items_ptr + item * 4 + 3)
    if num_splits == 0:
        return
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    members = tl.arange(0, BLOCK_M)
    heads = kv_head * GROUP + members
    dims = tl.arange(0, BLOCK_D)
    is_head = members < GROUP
    is_inside = is_head[:, None] & (dims < DIM)[None, :]
    kv_len = tl.load(lens_ptr + row)
    full = stop // BLOCK_N * BLOCK_N
    if HAS_WINDOW:
        full = start
        window = find_window(window, kv_len - 1, IS_CHUNK)
    query_places = query_ptr + row * token_stride + heads[:, None] * head_stride + dims[None, :]
    positions = tl.zeros([BLOCK_M], tl.int32) + (kv_len - 1)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if sinks_ptr is not None:
        begin = start * 0
        if HAS_WINDOW:
            begin = tl.maximum(kv_len - window, 0) // BLOCK_N * BLOCK_N
        if start == begin:
            top = tl.load(sinks_ptr + heads, mask=is_head, other=0.0).to(tl.float32) * 1.4426950408889634
            total += 1.0
    slopes = None
    if slopes_ptr is not None:
        slopes = tl.load(slopes_ptr + heads, mask=is_head, other=0.0)
    own_table = table_ptr + row * table_stride
    output, _, top, total = attend_keys(
        query_places, is_inside, cache_ptr, own_table, start, full, stop, positions, positions, kv_len, kv_head, top,
        total, slopes, scale, window, soft_cap, "plain", NUM_KV_HEADS, DIM, BLOCK_SIZE, 0, 0, BLOCK_M, BLOCK_N, BLOCK_D,
        HAS_WINDOW, HAS_CAP, False,
    )  # fmt: skip
    if num_splits == 1:
        places = out_ptr + (row * NUM_HEADS + heads)[:, None] * DIM + dims[None, :]
        tl.store(places, output.to(out_ptr.dtype.element_ty), mask=is_inside)
    else:
        parts = item * NUM_HEADS + heads
        targets = partials_ptr + parts[:, None] * DIM + dims[None, :]
        tl.store(targets, output, mask=is_inside)
        tl.store(sums_ptr + parts * 2, top, mask=is_head)
        tl.store(sums_ptr + parts * 2 + 1, total, mask=is_head)


@triton.jit(do_not_specialize=["table_stride", "first_tile", "num_decode", "num_rows"])
def prefill_kernel(
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
    token_stride,
    head_stride,
    table_stride,
    first_tile,
    num_decode,
    num_rows,
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
    HAS_WINDOW: tl.constexpr,
    IS_CHUNK: tl.constexpr,
    HAS_CAP: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
    HAS_PTX: tl.constexpr,
):
    """Program (i, g) computes TOKENS tokens of a row, with the query heads of key-value head g packed into the tile.
    Run starts and reaches [T] are the first and the last places of tokens' runs; without them, each sees no later one.

    Row b's tiles begin at number cu_seqlens[b] // TOKENS + b, which leaves room for a partial last tile without a table
    of tiles. The last tiles have most keys, so they run first.
    """
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    tile = first_tile + tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    low = num_decode
    high = num_rows
    while high - low > 1:
        middle = (low + high) // 2
        begins = tl.load(cu_seqlens_ptr + middle) // TOKENS + middle
        low = tl.where(begins <= tile, middle, low)
        high = tl.where(begins <= tile, high, middle)
    start = tl.load(cu_seqlens_ptr + low)
    num_new = tl.load(cu_seqlens_ptr + low + 1) - start
    kv_len = tl.load(lens_ptr + low)
    first_token = (tile - start // TOKENS - low) * TOKENS
    if first_token >= num_new:
        return
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    ROW: tl.constexpr = DIM // 2 if KV == "int4" else DIM
    members = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    tokens = first_token + members // GROUP
    heads = kv_head * GROUP + members % GROUP
    is_inside = ((members < TOKENS * GROUP) & (tokens < num_new))[:, None] & (dims < ROW)[None, :]
    rows = (start + tokens).to(tl.int64)
    query_places = query_ptr + rows[:, None] * token_stride + heads[:, None] * head_stride + dims[None, :]
    positions = kv_len - num_new + tokens
    lowest = kv_len - num_new + first_token
    stop = tl.minimum(kv_len, lowest + TOKENS)
    reaches = positions
    if reaches_ptr is not None:
        reaches = tl.load(reaches_ptr + rows, mask=tokens < num_new, other=0)
        stop = tl.minimum(kv_len, tl.max(reaches, axis=0) + 1)
    full = (lowest + 1) // BLOCK_N * BLOCK_N
    if HAS_WINDOW:
        if run_starts_ptr is not None:  # the window of a token reaches back to the beginning of its run at least
            begins = tl.load(run_starts_ptr + rows, mask=tokens < num_new, other=1 << 30)
            windows = tl.maximum(find_window(window, positions, IS_CHUNK), positions - begins + 1)
            full = tl.maximum(tl.min(positions - windows, axis=0) + 1, 0) // BLOCK_N * BLOCK_N
            window = windows[:, None]
        else:
            full = tl.maximum(lowest - find_window(window, lowest, IS_CHUNK) + 1, 0) // BLOCK_N * BLOCK_N
            if IS_CHUNK:
                window = find_window(window, positions, IS_CHUNK)[:, None]
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if sinks_ptr is not None:
        top = tl.load(sinks_ptr + heads).to(tl.float32) * 1.4426950408889634
        total += 1.0
    slopes = None
    if slopes_ptr is not None:
        slopes = tl.load(slopes_ptr + heads)
    own_table = table_ptr + low.to(tl.int64) * table_stride
    output, output_high, _, _ = attend_keys(
        query_places, is_inside, cache_ptr, own_table, 0, full, stop, positions, reaches, kv_len, kv_head, top, total,
        slopes, scale, window, soft_cap, KV, NUM_KV_HEADS, DIM, BLOCK_SIZE, BLOCK_BYTES, PARAMS_AT, BLOCK_M, BLOCK_N,
        BLOCK_D, HAS_WINDOW, HAS_CAP, HAS_PTX,
    )  # fmt: skip
    places = out_ptr + (rows * NUM_HEADS + heads)[:, None] * DIM + dims[None, :]
    tl.store(places, output.to(out_ptr.dtype.element_ty), mask=is_inside)
    if KV == "int4":
        tl.store(places + ROW, output_high.to(out_ptr.dtype.element_ty), mask=is_inside)

"""Triton kernels of attention over the paged cache [num_blocks, BLOCK_SIZE, 2, NUM_KV_HEADS, DIM].

Softmax is in base 2 and in float32, one tile of keys after the other (Milakov & Gimelshein 2018; Dao et al. 2022).
Nothing behind a row's last token is read, so what others left in a block cannot get in.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803, N806

from __future__ import annotations

import triton
import triton.language as tl


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
    kv_len,
    kv_head,
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
    """Take keys first … first + BLOCK_N - 1 into the running maximum, sum and output of each query row.

    Without MASKED all of them are seen by all rows. With blocks of a multiple of BLOCK_N a tile is in one block.
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
        # tanh(x) = 2 sigmoid(2x) - 1
        scores = soft_cap * (2.0 * tl.sigmoid(2.0 * scale / soft_cap * scores) - 1.0)
        factor = 1.4426950408889634
    else:
        factor = scale * 1.4426950408889634
    if MASKED:
        is_seen = (keys[None, :] <= positions[:, None]) & (keys < kv_len)[None, :]
        if HAS_WINDOW:
            is_seen = is_seen & (keys[None, :] > positions[:, None] - window)
        scores = tl.where(is_seen, scores, float("-inf"))
    # The factor, log2(e) times the scale, is applied late: then it costs nothing beside the subtraction.
    new_top = tl.maximum(top, tl.max(scores, axis=1) * factor)
    base = tl.where(new_top == float("-inf"), 0.0, new_top) if MASKED else new_top
    weights = tl.exp2(scores * factor - base[:, None])
    fade = tl.exp2(top - base)
    total = total * fade + tl.sum(weights, axis=1)
    pointers = pointers + NUM_KV_HEADS * DIM
    if MASKED:
        value = tl.load(pointers, mask=is_there, other=0.0)
    elif DIM != BLOCK_D:
        value = tl.load(pointers, mask=(dims < DIM)[None, :], other=0.0)
    else:
        value = tl.load(pointers)
    output = output * fade[:, None]
    output = tl.dot(weights.to(value.dtype), value, output, input_precision="ieee")
    return new_top, total, output


@triton.jit
def _divide(kv_len, window, num_splits, least_tokens, BLOCK_N: tl.constexpr, HAS_WINDOW: tl.constexpr):
    """How a row's context is divided: (where it begins, tokens of a split, splits that hold any)."""
    begin = kv_len * 0
    if HAS_WINDOW:
        begin = tl.maximum(kv_len - window, 0) // BLOCK_N * BLOCK_N
    share = (kv_len - begin + num_splits - 1) // num_splits
    tokens = tl.maximum((share + BLOCK_N - 1) // BLOCK_N * BLOCK_N, least_tokens)
    return begin, tokens, (kv_len - begin + tokens - 1) // tokens


@triton.jit(do_not_specialize=["table_stride", "least_tokens"])
def decode_kernel(
    query_ptr,
    cache_ptr,
    table_ptr,
    lens_ptr,
    out_ptr,
    partials_ptr,
    weights_ptr,
    token_stride,
    head_stride,
    table_stride,
    least_tokens,
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
    HAS_CAP: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program (b, g, s) takes split s of row b's context for the query heads of key-value head g.

    A row is divided into as many of the S splits as hold `least_tokens` each. The only split of a row writes the
    output, one of several its own output [B, H, S, D] and (maximum, sum) [B, H, S, 2].
    """
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    kv_len = tl.load(lens_ptr + row)
    begin, tokens, num_used = _divide(kv_len, window, tl.num_programs(2), least_tokens, BLOCK_N, HAS_WINDOW)
    if split >= num_used:
        return
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    members = tl.arange(0, BLOCK_M)
    heads = kv_head * GROUP + members
    dims = tl.arange(0, BLOCK_D)
    is_head = members < GROUP
    is_inside = is_head[:, None] & (dims < DIM)[None, :]
    start = begin + split * tokens
    stop = tl.minimum(start + tokens, kv_len)
    full = stop // BLOCK_N * BLOCK_N
    if HAS_WINDOW:
        full = tl.minimum(start, stop)
    query_places = query_ptr + row * token_stride + heads[:, None] * head_stride + dims[None, :]
    query = tl.load(query_places, mask=is_inside, other=0.0)
    positions = tl.zeros([BLOCK_M], tl.int32) + (kv_len - 1)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    output = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    own_table = table_ptr + row * table_stride
    if not HAS_WINDOW:
        for first in range(start, full, BLOCK_N):
            top, total, output = _add_tile(
                query, top, total, output, cache_ptr, own_table, first, positions, kv_len, kv_head, scale, window,
                soft_cap, NUM_KV_HEADS, DIM, BLOCK_SIZE, BLOCK_N, BLOCK_D, False, HAS_WINDOW, HAS_CAP,
            )  # fmt: skip
    for first in range(tl.maximum(full, start), stop, BLOCK_N):
        top, total, output = _add_tile(
            query, top, total, output, cache_ptr, own_table, first, positions, kv_len, kv_head, scale, window,
            soft_cap, NUM_KV_HEADS, DIM, BLOCK_SIZE, BLOCK_N, BLOCK_D, True, HAS_WINDOW, HAS_CAP,
        )  # fmt: skip
    output = output / tl.where(total == 0.0, 1.0, total)[:, None]
    if num_used == 1:
        places = out_ptr + (row * NUM_HEADS + heads)[:, None] * DIM + dims[None, :]
        tl.store(places, output.to(out_ptr.dtype.element_ty), mask=is_inside)
    else:
        rows = (row * NUM_HEADS + heads) * tl.num_programs(2) + split
        tl.store(partials_ptr + rows[:, None] * DIM + dims[None, :], output, mask=is_inside)
        tl.store(weights_ptr + rows * 2, top, mask=is_head)
        tl.store(weights_ptr + rows * 2 + 1, total, mask=is_head)


@triton.jit(do_not_specialize=["num_splits", "least_tokens"])
def combine_kernel(
    partials_ptr,
    weights_ptr,
    lens_ptr,
    out_ptr,
    num_splits,
    least_tokens,
    window,
    NUM_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program (b, h) adds up the splits of one head of one row, each weighted by its sum, where there are several."""
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    kv_len = tl.load(lens_ptr + tl.program_id(0))
    _, _, num_used = _divide(kv_len, window, num_splits, least_tokens, BLOCK_N, HAS_WINDOW)
    if num_used == 1:
        return
    row = tl.program_id(0).to(tl.int64) * NUM_HEADS + tl.program_id(1)
    dims = tl.arange(0, BLOCK_D)
    top = float("-inf")
    total = 0.0
    output = tl.zeros([BLOCK_D], tl.float32)
    for first in range(0, num_used, BLOCK_S):
        splits = first + tl.arange(0, BLOCK_S)
        is_split = splits < num_used
        places = row * num_splits + splits
        tops = tl.load(weights_ptr + places * 2, mask=is_split, other=float("-inf"))
        totals = tl.load(weights_ptr + places * 2 + 1, mask=is_split, other=0.0)
        parts = tl.load(
            partials_ptr + places[:, None] * DIM + dims[None, :],
            mask=is_split[:, None] & (dims < DIM)[None, :],
            other=0.0,
        )
        new_top = tl.maximum(top, tl.max(tops, axis=0))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        fade = tl.exp2(top - base)
        weights = totals * tl.exp2(tops - base)
        total = total * fade + tl.sum(weights, axis=0)
        output = output * fade + tl.sum(parts * weights[:, None], axis=0)
        top = new_top
    output = output / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + row * DIM + dims, output.to(out_ptr.dtype.element_ty), mask=dims < DIM)


@triton.jit(do_not_specialize=["table_stride", "first_tile", "num_decode", "num_rows"])
def prefill_kernel(
    query_ptr,
    cache_ptr,
    table_ptr,
    cu_seqlens_ptr,
    lens_ptr,
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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TOKENS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
):
    """Program (i, g) takes TOKENS tokens of a row, with the query heads of key-value head g packed into the tile.

    Row b's tiles begin at number cu_seqlens[b] // TOKENS + b, which leaves room for the last, partial one without a
    table of tiles. The last tiles, which see most keys, go first.
    """
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
    members = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    tokens = first_token + members // GROUP
    heads = kv_head * GROUP + members % GROUP
    is_inside = ((members < TOKENS * GROUP) & (tokens < num_new))[:, None] & (dims < DIM)[None, :]
    rows = (start + tokens).to(tl.int64)
    query_places = query_ptr + rows[:, None] * token_stride + heads[:, None] * head_stride + dims[None, :]
    query = tl.load(query_places, mask=is_inside, other=0.0)
    positions = kv_len - num_new + tokens
    lowest = kv_len - num_new + first_token
    stop = tl.minimum(kv_len, lowest + TOKENS)
    full = (lowest + 1) // BLOCK_N * BLOCK_N
    if HAS_WINDOW:
        full = tl.maximum(lowest - window + 1, 0) // BLOCK_N * BLOCK_N
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    output = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    own_table = table_ptr + low.to(tl.int64) * table_stride
    if not HAS_WINDOW:
        for first in range(0, full, BLOCK_N):
            top, total, output = _add_tile(
                query, top, total, output, cache_ptr, own_table, first, positions, kv_len, kv_head, scale, window,
                soft_cap, NUM_KV_HEADS, DIM, BLOCK_SIZE, BLOCK_N, BLOCK_D, False, HAS_WINDOW, HAS_CAP,
            )  # fmt: skip
    for first in range(full, stop, BLOCK_N):
        top, total, output = _add_tile(
            query, top, total, output, cache_ptr, own_table, first, positions, kv_len, kv_head, scale, window,
            soft_cap, NUM_KV_HEADS, DIM, BLOCK_SIZE, BLOCK_N, BLOCK_D, True, HAS_WINDOW, HAS_CAP,
        )  # fmt: skip
    output = output / tl.where(total == 0.0, 1.0, total)[:, None]
    places = out_ptr + (rows * NUM_HEADS + heads)[:, None] * DIM + dims[None, :]
    tl.store(places, output.to(out_ptr.dtype.element_ty), mask=is_inside)

"""The decode kernel over quantized keys and values, in the blocks that `seesay.llm.memory.kv_layout` describes.

Keys are the rows of the first product, S = K · Qᵀ, and components of values those of the second, O = Vᵀ · P. The query
heads of one key-value head are columns, of which tensor cores take 8 at a time, so few heads waste little. Stored
numbers are not turned into their values: scales and zero points are applied to scores and weights, as in
`quantized_kv`. One byte permutation turns two integers into float16: they become the low bits of numbers from 1024 on.
What this offset adds to a product is subtracted from its accumulator before, so sums stay small.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from seesay.kernels.attention.online_softmax import cap_scores, find_bias, find_window
from seesay.kernels.attention.quantized_kv import UNIT, load_bytes, load_params

OFFSET = tl.constexpr(1024.0)
"""Added to integers that become float16: from here on, neighbouring float16 numbers differ by 1."""


@triton.jit(do_not_specialize=["table_stride"])
def decode_quantized_kernel(
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
    KV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
    PARAMS_AT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    IS_CHUNK: tl.constexpr,
    HAS_CAP: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
    HAS_PTX: tl.constexpr,
):
    """As `attention.decode_kernel`, for the KV format "int8", "int4" or "fp8". BLOCK_D: components, of int4 half of
    them. HAS_PTX: integers are unpacked by PTX instructions, which Triton's interpreter does not have."""
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
    ROW: tl.constexpr = DIM // 2 if KV == "int4" else DIM
    members = tl.arange(0, BLOCK_M)
    heads = kv_head * GROUP + members
    dims = tl.arange(0, BLOCK_D)
    is_head = members < GROUP
    is_inside = is_head[None, :] & (dims < ROW)[:, None]
    kv_len = tl.load(lens_ptr + row)
    start = tl.multiple_of(start, BLOCK_N)  # else values, which lie along tokens, are read byte by byte
    full = tl.multiple_of(stop // BLOCK_N * BLOCK_N, BLOCK_N)
    first_seen = start * 0
    if HAS_WINDOW:
        first_seen = tl.maximum(kv_len - find_window(window, kv_len - 1, IS_CHUNK), 0)
        full = start
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if sinks_ptr is not None:
        begin = first_seen // BLOCK_N * BLOCK_N
        if start == begin:
            top = tl.load(sinks_ptr + heads, mask=is_head, other=0.0).to(tl.float32) * 1.4426950408889634
            total += 1.0
    slopes = None
    if slopes_ptr is not None:
        slopes = tl.load(slopes_ptr + heads, mask=is_head, other=0.0)
    query_places = query_ptr + row * token_stride + heads[None, :] * head_stride + dims[:, None]
    query, query_high, query_sum, added = _load_query(query_places, is_inside, ROW, KV)
    output = tl.zeros([BLOCK_D, BLOCK_M], tl.float32)
    output_high = tl.zeros([BLOCK_D, BLOCK_M], tl.float32)
    own_table = table_ptr + row * table_stride
    for first in range(start, full, BLOCK_N):
        top, total, output, output_high = _add_tile(
            query, query_high, query_sum, added, top, total, output, output_high, cache_ptr, own_table, first,
            first_seen, kv_len, kv_head, slopes, scale, soft_cap, KV, NUM_KV_HEADS, DIM, BLOCK_SIZE, BLOCK_BYTES,
            PARAMS_AT, BLOCK_N, BLOCK_D, False, HAS_CAP, HAS_PTX,
        )  # fmt: skip
    for first in range(full, stop, BLOCK_N):
        top, total, output, output_high = _add_tile(
            query, query_high, query_sum, added, top, total, output, output_high, cache_ptr, own_table, first,
            first_seen, kv_len, kv_head, slopes, scale, soft_cap, KV, NUM_KV_HEADS, DIM, BLOCK_SIZE, BLOCK_BYTES,
            PARAMS_AT, BLOCK_N, BLOCK_D, True, HAS_CAP, HAS_PTX,
        )  # fmt: skip
    inverse = (1.0 / UNIT) / tl.where(total == 0.0, 1.0, total)
    if num_splits == 1:
        places = out_ptr + (row * NUM_HEADS + heads)[None, :] * DIM + dims[:, None]
        _store(places, output, output_high, inverse, is_inside, ROW, KV)
    else:
        parts = item * NUM_HEADS + heads
        targets = partials_ptr + parts[None, :] * DIM + dims[:, None]
        _store(targets, output, output_high, inverse, is_inside, ROW, KV)
        tl.store(sums_ptr + parts * 2, top, mask=is_head)
        tl.store(sums_ptr + parts * 2 + 1, total, mask=is_head)


@triton.jit
def _store(places, output, output_high, inverse, is_inside, ROW: tl.constexpr, KV: tl.constexpr):
    tl.store(places, (output * inverse[None, :]).to(places.dtype.element_ty), mask=is_inside)
    if KV == "int4":
        tl.store(places + ROW, (output_high * (inverse / 16.0)[None, :]).to(places.dtype.element_ty), mask=is_inside)


@triton.jit
def _load_query(places, is_inside, ROW: tl.constexpr, KV: tl.constexpr):
    """Return the query [BLOCK_D, BLOCK_M]; of int4 its two halves, the second one divided by 16; the sum of its
    components; and what the offset of unpacked integers adds to its product with a key.

    The query becomes float16, for fast products. One of float32 stays so, and integers for it have no offset, since its
    products are to be exact.
    """
    kind: tl.constexpr = tl.float32 if places.dtype.element_ty == tl.float32 else tl.float16
    query = tl.load(places, mask=is_inside, other=0.0).to(kind)
    query_high = query
    query_sum = tl.sum(query.to(tl.float32), axis=0)
    added = query_sum
    if KV == "int4":
        query_high = (tl.load(places + ROW, mask=is_inside, other=0.0).to(tl.float32) / 16.0).to(kind)
        high_sum = tl.sum(query_high.to(tl.float32), axis=0)
        added += high_sum
        query_sum += high_sum * 16.0
    added *= 0.0 if kind == tl.float32 else OFFSET
    return query, query_high, query_sum, added


@triton.jit
def _add_tile(
    query,
    query_high,
    query_sum,
    added,
    top,
    total,
    output,
    output_high,
    cache_ptr,
    table_ptr,
    first,
    first_seen,
    kv_len,
    kv_head,
    slopes,
    scale,
    soft_cap,
    KV: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
    PARAMS_AT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MASKED: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_PTX: tl.constexpr,
):
    """Add keys first … first + BLOCK_N - 1 to the running maximum, sum and output of each query head; with MASKED,
    those of first_seen … kv_len - 1 among them.

    If the block size is a multiple of BLOCK_N, a tile lies in one block. Keys behind the last one are read, too, since
    a mask would split the reads into bytes; what they hold has no effect.
    """
    ROW: tl.constexpr = DIM // 2 if KV == "int4" else DIM
    ADDED: tl.constexpr = 0.0 if query.dtype == tl.float32 else OFFSET
    VALUES_AT: tl.constexpr = NUM_KV_HEADS * BLOCK_SIZE * ROW
    steps = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)
    keys = first + steps
    if BLOCK_SIZE % BLOCK_N == 0:
        place = 0
        if BLOCK_SIZE != BLOCK_N:
            place = tl.multiple_of(first % BLOCK_SIZE, BLOCK_N)
        block_ptr = cache_ptr + tl.load(table_ptr + first // BLOCK_SIZE).to(tl.int64) * BLOCK_BYTES
        head_ptr = block_ptr + kv_head * (BLOCK_SIZE * ROW)
        key_pointers = head_ptr + place * ROW + (steps[:, None] * ROW + dims[None, :])
        value_pointers = head_ptr + VALUES_AT + place + (dims[:, None] * BLOCK_SIZE + steps[None, :])
        params_ptr = (block_ptr + PARAMS_AT).to(tl.pointer_type(tl.int32)) + (kv_head * BLOCK_SIZE + place) + steps
    else:
        block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=keys < kv_len, other=0).to(tl.int64)
        places = keys % BLOCK_SIZE
        head_at = block * BLOCK_BYTES + kv_head * (BLOCK_SIZE * ROW)
        key_pointers = cache_ptr + (head_at + places * ROW)[:, None] + dims[None, :]
        value_pointers = cache_ptr + VALUES_AT + (head_at + places)[None, :] + dims[:, None] * BLOCK_SIZE
        params_ptr = (cache_ptr + (block * BLOCK_BYTES + PARAMS_AT)).to(tl.pointer_type(tl.int32))
        params_ptr += kv_head * BLOCK_SIZE + places
    key_scale, key_zero = load_params(params_ptr, KV)
    key = load_bytes(key_pointers, (dims < ROW)[None, :], ROW, BLOCK_D)
    bias = tl.zeros([BLOCK_N, query.shape[1]], tl.float32)
    if KV != "fp8":
        bias -= added[None, :]
    if KV == "int4":
        low, high = _unpack_int4(key, query.dtype, HAS_PTX)
        scores = tl.dot(low, query, bias, input_precision="ieee")
        scores = tl.dot(high, query_high, scores, input_precision="ieee")
    else:
        scores = tl.dot(_unpack(key, query.dtype, KV, HAS_PTX), query, bias, input_precision="ieee")
    if KV != "fp8":
        scores -= key_zero[:, None] * query_sum[None, :]
    if HAS_CAP:
        scores = cap_scores(scores * key_scale[:, None], scale, soft_cap) * 1.4426950408889634
    else:
        scores *= (key_scale * (scale * 1.4426950408889634))[:, None]
    if slopes is not None:
        scores += find_bias(slopes[None, :], keys[:, None], kv_len - 1, scale)
    is_seen = (keys >= first_seen) & (keys < kv_len)
    if MASKED:
        scores = tl.where(is_seen[:, None], scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, axis=0))
    base = tl.where(new_top == float("-inf"), 0.0, new_top) if MASKED else new_top
    weights = tl.exp2(scores - base[None, :])
    fade = tl.exp2(top - base)
    total = total * fade + tl.sum(weights, axis=0)
    value_scale, value_zero = load_params(params_ptr + NUM_KV_HEADS * BLOCK_SIZE, KV)
    if MASKED:
        value_scale = tl.where(is_seen, value_scale, 0.0)
        value_zero = tl.where(is_seen, value_zero, 0.0)
    # No value of a model is so large that its scale is cut.
    weights = (weights * tl.minimum(value_scale * UNIT, 65504.0)[:, None]).to(query.dtype)
    value = load_bytes(value_pointers, (dims < ROW)[:, None], ROW, BLOCK_D)
    output *= fade[None, :]
    if KV == "fp8":
        value = _unpack(value, query.dtype, KV, HAS_PTX)
        if MASKED:  # integers are finite
            value = tl.where(is_seen[None, :], value, 0.0)
        output = tl.dot(value, weights, output, input_precision="ieee")
    elif KV == "int8":
        shift = tl.sum(weights.to(tl.float32) * (value_zero + ADDED)[:, None], axis=0)
        value = _unpack(value, query.dtype, KV, HAS_PTX)
        output = tl.dot(value, weights, output - shift[None, :], input_precision="ieee")
    else:
        rounded = weights.to(tl.float32)
        shift = tl.sum(rounded * value_zero[:, None], axis=0)
        weight = tl.sum(rounded, axis=0) * ADDED
        low, high = _unpack_int4(value, query.dtype, HAS_PTX)
        output = tl.dot(low, weights, output - (shift + weight)[None, :], input_precision="ieee")
        output_high = output_high * fade[None, :] - (shift * 16.0 + weight)[None, :]
        output_high = tl.dot(high, weights, output_high, input_precision="ieee")
    return new_top, total, output, output_high


@triton.jit
def _unpack(x, KIND: tl.constexpr, KV: tl.constexpr, HAS_PTX: tl.constexpr):
    """Return bytes as the FP8 numbers that they are, or as integers plus OFFSET."""
    if KV == "fp8":
        x = x.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    elif HAS_PTX:
        x = tl.inline_asm_elementwise(
            """{
            .reg .b32 k;
            mov.b32 k, 0x64646464;
            prmt.b32 $0, $2, k, 0x4140;
            prmt.b32 $1, $2, k, 0x4342;
            }""",
            "=&r,=r,r",
            [x],
            dtype=tl.float16,
            is_pure=True,
            pack=4,
        )
    else:
        x = x.to(tl.float16) + OFFSET
    return _convert(x, KIND, KV)


@triton.jit
def _unpack_int4(x, KIND: tl.constexpr, HAS_PTX: tl.constexpr):
    """Return the low four bits of bytes, and 16 times the high ones, plus OFFSET each."""
    if HAS_PTX:
        low, high = tl.inline_asm_elementwise(
            """{
            .reg .b32 k, t, u;
            mov.b32 k, 0x64646464;
            prmt.b32 t, $4, k, 0x4140;
            prmt.b32 u, $4, k, 0x4342;
            and.b32 $0, t, 0xFF0FFF0F;
            and.b32 $1, u, 0xFF0FFF0F;
            and.b32 $2, t, 0xFFF0FFF0;
            and.b32 $3, u, 0xFFF0FFF0;
            }""",
            "=&r,=&r,=&r,=&r,r",
            [x],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=4,
        )
    else:
        low = (x & 15).to(tl.float16) + OFFSET
        high = (x & 240).to(tl.float16) + OFFSET
    return _convert(low, KIND, "int4"), _convert(high, KIND, "int4")


@triton.jit
def _convert(x, KIND: tl.constexpr, KV: tl.constexpr):
    """Convert float16 to KIND. Products in float32 are exact without an offset."""
    x = x.to(KIND)
    if x.dtype == tl.float32 and KV != "fp8":
        x -= OFFSET
    return x

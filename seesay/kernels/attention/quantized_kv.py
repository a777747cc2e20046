"""Quantized keys and values in the paged cache: what the kernels that write and read it have in common.

Blocks are bytes, laid out as `seesay.llm.memory.kv_layout` says. KV is the format: "int8", "int4" or "fp8". Stored
numbers are only cast, to float16, which has room for all of them: scales and zero points of keys are applied to the
scores after the first product, those of values to the weights before the second one. With x = scale · (q - zero), the
product of a query and a key is scale · (query · q - zero · sum(query)); likewise a zero point of values shifts all
components of the output by one number per query. Low and high bits of an int4 byte are two tiles of half the size, in
products of their own. Prefill attends here, decode rows in `quantized_decode`.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from seesay.kernels.attention.online_softmax import cap_scores, find_bias, hide_scores, weigh_scores

UNIT = tl.constexpr(1024.0)
"""The factor of weights times scales of values, which are small: float16 has few digits for numbers below 2^-14."""


@triton.jit
def attend_quantized(
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
    """Attend to keys start … stop - 1; all rows see those before `full`, unless HAS_WINDOW. Return the output and its
    second half (int4 only), not yet divided by the sum; the maximum; the sum.

    `query_places` and `is_inside` [BLOCK_M, BLOCK_D] are the query, for int4 its first half. HAS_PTX: numbers are
    unpacked by PTX instructions, which Triton's interpreter does not have.
    """
    KIND: tl.constexpr = tl.float32 if query_places.dtype.element_ty == tl.float32 else tl.float16
    query = tl.load(query_places, mask=is_inside, other=0.0).to(KIND)
    query_sum = tl.sum(query.to(tl.float32), axis=1)
    query_high = query
    output = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    output_high = 0.0
    if KV == "int4":
        query_high = tl.load(query_places + DIM // 2, mask=is_inside, other=0.0).to(KIND)
        query_sum += tl.sum(query_high.to(tl.float32), axis=1)
        output_high = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    shift = tl.zeros([BLOCK_M], tl.float32)
    if not HAS_WINDOW:
        for first in range(start, full, BLOCK_N):
            top, total, shift, output, output_high = _add_tile(
                query, query_high, query_sum, top, total, shift, output, output_high, cache_ptr, table_ptr, first,
                positions, reaches, kv_len, kv_head, slopes, scale, window, soft_cap, KV, NUM_KV_HEADS, DIM, BLOCK_SIZE,
                BLOCK_BYTES, PARAMS_AT, BLOCK_N, BLOCK_D, False, HAS_WINDOW, HAS_CAP, HAS_PTX,
            )  # fmt: skip
    for first in range(full, stop, BLOCK_N):
        top, total, shift, output, output_high = _add_tile(
            query, query_high, query_sum, top, total, shift, output, output_high, cache_ptr, table_ptr, first,
            positions, reaches, kv_len, kv_head, slopes, scale, window, soft_cap, KV, NUM_KV_HEADS, DIM, BLOCK_SIZE,
            BLOCK_BYTES, PARAMS_AT, BLOCK_N, BLOCK_D, True, HAS_WINDOW, HAS_CAP, HAS_PTX,
        )  # fmt: skip
    if KV == "int4":
        output_high = (output_high - shift[:, None]) / UNIT
    return (output - shift[:, None]) / UNIT, output_high, top, total


@triton.jit
def _add_tile(
    query,
    query_high,
    query_sum,
    top,
    total,
    shift,
    output,
    output_high,
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
    KV: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
    PARAMS_AT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MASKED: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_PTX: tl.constexpr,
):
    """Add keys first … first + BLOCK_N - 1 to the running maximum, sum, shift and output of each query row.

    Tiles have the axes of the products, so no tile is transposed. If the block size is a multiple of BLOCK_N, a tile
    lies in one block. Keys behind the last one are read, too, since a mask would split the reads into bytes; what they
    hold has no effect.
    """
    ROW: tl.constexpr = DIM // 2 if KV == "int4" else DIM
    VALUES_AT: tl.constexpr = NUM_KV_HEADS * BLOCK_SIZE * ROW
    CENTRE: tl.constexpr = 8.0 if KV == "int4" else 128.0  # what unpacked integers are less
    steps = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)
    keys = first + steps
    is_key = keys < kv_len
    if BLOCK_SIZE % BLOCK_N == 0:
        block = tl.load(table_ptr + first // BLOCK_SIZE).to(tl.int64)
        block_ptr = cache_ptr + block * BLOCK_BYTES
        places = first % BLOCK_SIZE + steps
        head_ptr = block_ptr + kv_head * (BLOCK_SIZE * ROW)
        key_pointers = head_ptr + places[None, :] * ROW + dims[:, None]
        value_pointers = head_ptr + VALUES_AT + dims[None, :] * BLOCK_SIZE + places[:, None]
        params_ptr = (block_ptr + PARAMS_AT).to(tl.pointer_type(tl.int32)) + kv_head * BLOCK_SIZE + places
    else:
        block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
        block_at = block * BLOCK_BYTES
        places = keys % BLOCK_SIZE
        head_at = block_at + kv_head * (BLOCK_SIZE * ROW)
        key_pointers = cache_ptr + (head_at + places * ROW)[None, :] + dims[:, None]
        value_pointers = cache_ptr + VALUES_AT + (head_at + places)[:, None] + dims[None, :] * BLOCK_SIZE
        params_ptr = (cache_ptr + (block_at + PARAMS_AT)).to(tl.pointer_type(tl.int32))
        params_ptr += kv_head * BLOCK_SIZE + places
    key_scale, key_zero = load_params(params_ptr, KV)
    key = load_bytes(key_pointers, (dims < ROW)[:, None], ROW, BLOCK_D)
    if KV == "int4":
        low, high = _unpack_int4(key, query.dtype, HAS_PTX)
        scores = tl.dot(query, low, input_precision="ieee")
        scores = tl.dot(query_high, high, scores, input_precision="ieee")
    else:
        scores = tl.dot(query, unpack(key, query.dtype, KV, HAS_PTX), input_precision="ieee")
    if KV != "fp8":
        scores -= query_sum[:, None] * (key_zero - CENTRE)[None, :]
    if HAS_CAP:
        scores = cap_scores(scores * key_scale[None, :], scale, soft_cap) * 1.4426950408889634
    else:
        scores *= (key_scale * (scale * 1.4426950408889634))[None, :]
    if slopes is not None:
        scores += find_bias(slopes[:, None], keys[None, :], positions[:, None], scale)
    if MASKED:
        scores = hide_scores(scores, keys, kv_len, positions, reaches, window, HAS_WINDOW)
    weights, fade, top, total = weigh_scores(scores, 1.0, top, total, MASKED)
    value_scale, value_zero = load_params(params_ptr + NUM_KV_HEADS * BLOCK_SIZE, KV)
    if MASKED:
        value_scale = tl.where(is_key, value_scale, 0.0)
        value_zero = tl.where(is_key, value_zero, 0.0)
    # No value of a model is so large that its weight is cut.
    weights = tl.minimum(weights * (value_scale * UNIT)[None, :], 65504.0).to(query.dtype)
    if KV != "fp8":
        shift = shift * fade + tl.sum(weights.to(tl.float32) * (value_zero - CENTRE)[None, :], axis=1)
    value = load_bytes(value_pointers, (dims < ROW)[None, :], ROW, BLOCK_D)
    if KV == "int4":
        low, high = _unpack_int4(value, query.dtype, HAS_PTX)
        output = tl.dot(weights, low, output * fade[:, None], input_precision="ieee")
        output_high = tl.dot(weights, high, output_high * fade[:, None], input_precision="ieee")
    else:
        value = unpack(value, query.dtype, KV, HAS_PTX)
        if MASKED and KV == "fp8":  # integers are finite
            value = tl.where(is_key[:, None], value, 0.0)
        output = tl.dot(weights, value, output * fade[:, None], input_precision="ieee")
    return top, total, shift, output, output_high


@triton.jit
def load_bytes(pointers, is_dim, ROW: tl.constexpr, BLOCK_D: tl.constexpr):
    if ROW != BLOCK_D:
        return tl.load(pointers, mask=is_dim, other=0)
    else:
        return tl.load(pointers)


@triton.jit
def load_params(pointers, KV: tl.constexpr):
    """Return scales and zero points float32. FP8 has no zero point."""
    params = tl.load(pointers)
    if KV == "fp8":
        scale = params.to(tl.float32, bitcast=True)
        return scale, scale
    else:
        scale = (params & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True)
        zero = (params >> 16).to(tl.uint16).to(tl.float16, bitcast=True)
        return scale.to(tl.float32), zero.to(tl.float32)


@triton.jit
def unpack(x, KIND: tl.constexpr, KV: tl.constexpr, HAS_PTX: tl.constexpr):
    """Return bytes as the numbers that they are: of FP8, or of integers less 128."""
    if KV == "fp8":
        x = x.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    elif HAS_PTX:
        # As the low bits of a float16 from 1024 on, whose last place is 1; then subtract 1152.
        x = tl.inline_asm_elementwise(
            """{
            .reg .b32 k, c, t;
            mov.b32 k, 0x64646464;
            mov.b32 c, 0xE480E480;
            prmt.b32 t, $2, k, 0x4140;
            add.f16x2 $0, t, c;
            prmt.b32 t, $2, k, 0x4342;
            add.f16x2 $1, t, c;
            }""",
            "=r,=r,r",
            [x],
            dtype=tl.float16,
            is_pure=True,
            pack=4,
        )
    else:
        x = x.to(tl.float16) - 128.0
    return x.to(KIND)


@triton.jit
def _unpack_int4(x, KIND: tl.constexpr, HAS_PTX: tl.constexpr):
    """Return the low and the high four bits of bytes, less 8 each."""
    if HAS_PTX:
        # As in `unpack`: 1024 + low bits, less 1032; and 1024 + 16 · high bits, divided by 16, less 72.
        low, high = tl.inline_asm_elementwise(
            """{
            .reg .b32 k, c, d, s, t, u;
            mov.b32 k, 0x64646464;
            mov.b32 c, 0xE408E408;
            mov.b32 d, 0xD480D480;
            mov.b32 s, 0x2C002C00;
            prmt.b32 t, $4, k, 0x4140;
            and.b32 u, t, 0xFF0FFF0F;
            add.f16x2 $0, u, c;
            and.b32 u, t, 0xFFF0FFF0;
            fma.rn.f16x2 $2, u, s, d;
            prmt.b32 t, $4, k, 0x4342;
            and.b32 u, t, 0xFF0FFF0F;
            add.f16x2 $1, u, c;
            and.b32 u, t, 0xFFF0FFF0;
            fma.rn.f16x2 $3, u, s, d;
            }""",
            "=&r,=&r,=&r,=&r,r",
            [x],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=4,
        )
    else:
        low = (x & 15).to(tl.float16) - 8.0
        high = (x >> 4).to(tl.float16) - 8.0
    return low.to(KIND), high.to(KIND)


@triton.jit
def write_quantized(
    low,
    high,
    is_dim,
    dims,
    heads,
    is_kept,
    cache_ptr,
    slot,
    KV: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
    PARAMS_AT: tl.constexpr,
):
    """Write the heads [HEADS] of one token that are keys or values, `is_kept`, to its slot. `low` and `high` float32
    [HEADS, BLOCK] are components dims and DIM / 2 + dims of them. Return the scales."""
    ROW: tl.constexpr = DIM // 2 if KV == "int4" else DIM
    is_inside = is_kept[:, None] & is_dim[None, :]
    low = tl.where(is_inside, low, 0.0)
    high = tl.where(is_inside, high, 0.0)
    block_ptr = cache_ptr + (slot // BLOCK_SIZE) * BLOCK_BYTES
    place = slot % BLOCK_SIZE
    is_value = heads >= NUM_HEADS + NUM_KV_HEADS
    group = (heads - NUM_HEADS) % NUM_KV_HEADS
    first = group * (BLOCK_SIZE * ROW)
    first += tl.where(is_value, NUM_KV_HEADS * BLOCK_SIZE * ROW + place, place * ROW)
    step = tl.where(is_value, BLOCK_SIZE, 1)
    targets = block_ptr + first[:, None] + dims[None, :] * step[:, None]
    low, high, params, scale = quantize_halves(low, high, KV)
    if KV == "int4":
        tl.store(targets, low | (high << 4), mask=is_inside)
    else:
        tl.store(targets, low, mask=is_inside)
        tl.store(targets + (DIM // 2) * step[:, None], high, mask=is_inside)
    params_ptr = (block_ptr + PARAMS_AT).to(tl.pointer_type(tl.int32))
    params_ptr += (tl.where(is_value, NUM_KV_HEADS, 0) + group) * BLOCK_SIZE + place
    tl.store(params_ptr, params, mask=is_kept)
    return scale


@triton.jit
def quantize_halves(low, high, KV: tl.constexpr):
    """Return vectors float32 [N, BLOCK], given in halves, as bytes, with their parameters int32 [N] and scales
    float32 [N]. Components behind the last one are 0."""
    if KV == "fp8":
        peak = tl.maximum(tl.max(tl.abs(low), axis=1), tl.max(tl.abs(high), axis=1))
        inverse = tl.where(peak >= 1e-30, 448.0 / tl.maximum(peak, 1e-30), 0.0)[:, None]
        scale = peak / 448.0
        params = scale.to(tl.int32, bitcast=True)
        low = _as_fp8(low * inverse)
        high = _as_fp8(high * inverse)
    else:
        steps: tl.constexpr = 15.0 if KV == "int4" else 255.0
        least = tl.minimum(tl.min(low, axis=1), tl.min(high, axis=1))
        most = tl.maximum(tl.max(low, axis=1), tl.max(high, axis=1))
        least = tl.minimum(least, 0.0)
        most = tl.maximum(most, 0.0)
        stored = ((most - least) / steps).to(tl.float16)
        scale = stored.to(tl.float32)
        inverse = tl.where(scale > 0.0, 1.0 / tl.maximum(scale, 2.0**-24), 0.0)
        zero = (-least * inverse).to(tl.float16)
        params = stored.to(tl.uint16, bitcast=True).to(tl.int32)
        params |= zero.to(tl.uint16, bitcast=True).to(tl.int32) << 16
        low = _as_integer(low, inverse[:, None], zero.to(tl.float32)[:, None], steps)
        high = _as_integer(high, inverse[:, None], zero.to(tl.float32)[:, None], steps)
    return low, high, params, scale


@triton.jit
def _as_fp8(x):
    """Round to the nearest FP8 number, by integers: Triton's interpreter rounds wrongly up to powers of two. Times
    2^-120, the exponent of a float32 is that of FP8, also for denormal numbers; 20 more bits follow."""
    bits = (tl.minimum(tl.abs(x), 448.0) * 7.52316384526264e-37).to(tl.int32, bitcast=True)
    code = (bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20
    return tl.where(x < 0.0, code | 0x80, code).to(tl.uint8)


@triton.jit
def _as_integer(x, inverse, zero, steps: tl.constexpr):
    """Round x / scale + zero to an integer of 0 … steps."""
    x = tl.minimum(tl.maximum(x * inverse + zero + 0.5, 0.0), steps)
    return x.to(tl.int32).to(tl.uint8)

"""Triton kernels for vision towers only: rotary embedding of queries and keys; attention inside windows, with rotary
embedding; attention inside longer segments, without; norms of a sum; quick GELU.

Strides count elements. All arithmetic is in float32; inputs of matrix products are rounded to the tensors' dtype.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seesay.kernels.sizes import power_of_2_from

LONGEST_WINDOW = 64
"""Queries and keys per program: the size of Qwen2.5-VL's windows."""
SPAN = 4096
"""Elements per program of an elementwise kernel."""
SEGMENT_BLOCKS = (128, 64, 8, 3)
"""Queries of a program, keys at a time, warps and stages for segments of any lengths, for types of 16 bits."""
LOG2_E = 1.4426950408889634
ROTATED_HEADS = 16
"""Heads of a row that one program rotates."""


@triton.jit
def _load_turned(x_ptr, places, mask, cos, sin, HALF: tl.constexpr):
    """Load both halves of heads at `places`, rotated by the angles of their rows and rounded to the stored dtype."""
    first = tl.load(x_ptr + places, mask=mask, other=0.0)
    last = tl.load(x_ptr + places + HALF, mask=mask, other=0.0)
    turned_first = first.to(tl.float32) * cos - last.to(tl.float32) * sin
    turned_last = last.to(tl.float32) * cos + first.to(tl.float32) * sin
    return turned_first.to(first.dtype), turned_last.to(last.dtype)


@triton.jit
def rotate_kernel(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    NUM_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    HEADS: tl.constexpr,
):
    """Program (r, p) rotates heads p · HEADS … of the queries and keys of row r."""
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    pairs = tl.arange(0, BLOCK_HALF)
    cos = tl.load(cos_ptr + row * HALF + pairs, mask=pairs < HALF, other=0.0)[None, :]
    sin = tl.load(sin_ptr + row * HALF + pairs, mask=pairs < HALF, other=0.0)[None, :]
    mask = (heads < 2 * NUM_HEADS)[:, None] & (pairs < HALF)[None, :]
    places = (row * (3 * NUM_HEADS) + heads[:, None]) * (2 * HALF) + pairs[None, :]
    first, last = _load_turned(qkv_ptr, places, mask, cos, sin, HALF)
    tl.store(qkv_ptr + places, first, mask=mask)
    tl.store(qkv_ptr + places + HALF, last, mask=mask)


@triton.jit(do_not_specialize_on_alignment=["starts_ptr"])
def window_kernel(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    starts_ptr,
    out_ptr,
    scale,
    NUM_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program w · heads + h computes head h in window w, which is rows starts[w] … starts[w + 1], at most BLOCK.

    The two halves of a head are loaded separately: each is padded to a power of two, and the rotation pairs them.
    `scale` is the scale of the scores times log2(e)."""
    head = tl.program_id(0) % NUM_HEADS
    window = tl.program_id(0) // NUM_HEADS
    start = tl.load(starts_ptr + window).to(tl.int64)
    length = (tl.load(starts_ptr + window + 1) - start).to(tl.int32)
    pairs = tl.arange(0, BLOCK_HALF)
    rows = tl.arange(0, BLOCK)
    mask = (rows < length)[:, None] & (pairs < HALF)[None, :]
    row_size = NUM_HEADS * 2 * HALF
    angles = (start + rows)[:, None] * HALF + pairs[None, :]
    cos = tl.load(cos_ptr + angles, mask=mask, other=0.0)
    sin = tl.load(sin_ptr + angles, mask=mask, other=0.0)
    places = (start + rows)[:, None] * (3 * row_size) + head * (2 * HALF) + pairs[None, :]
    query_first, query_last = _load_turned(qkv_ptr, places, mask, cos, sin, HALF)
    key_first, key_last = _load_turned(qkv_ptr, places + row_size, mask, cos, sin, HALF)
    value_first = tl.load(qkv_ptr + places + 2 * row_size, mask=mask, other=0.0)
    value_last = tl.load(qkv_ptr + places + 2 * row_size + HALF, mask=mask, other=0.0)
    scores = tl.dot(query_first, tl.trans(key_first), input_precision="ieee")
    scores = tl.dot(query_last, tl.trans(key_last), scores, input_precision="ieee") * scale
    scores = tl.where((rows < length)[None, :], scores, float("-inf"))
    weights = tl.exp2(scores - tl.max(scores, axis=1)[:, None])
    share = (1.0 / tl.sum(weights, axis=1))[:, None]
    rounded = weights.to(value_first.dtype)
    out_first = tl.dot(rounded, value_first, input_precision="ieee") * share
    out_last = tl.dot(rounded, value_last, input_precision="ieee") * share
    places = (start + rows)[:, None] * row_size + head * (2 * HALF) + pairs[None, :]
    tl.store(out_ptr + places, out_first.to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(out_ptr + places + HALF, out_last.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _attend_keys(
    query,
    keys_ptr,
    rows,
    columns,
    is_key,
    is_column,
    highest,
    total,
    out,
    scale,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    IS_WHOLE: tl.constexpr,
):
    """Add one block of keys to (highest score, sum of weights, weighted values) of the queries. IS_WHOLE: all keys of
    the block are in the segment."""
    places = rows[:, None] * (3 * NUM_HEADS * HEAD_DIM) + columns
    mask = is_column if IS_WHOLE else is_key[:, None] & is_column
    key = tl.load(keys_ptr + places, mask=mask, other=0.0)
    scores = tl.dot(query, tl.trans(key), input_precision="ieee")
    if not IS_WHOLE:
        scores = tl.where(is_key[None, :], scores, float("-inf"))
    higher = tl.maximum(highest, tl.max(scores, axis=1) * scale)
    weights = tl.exp2(scores * scale - higher[:, None])
    shrink = tl.exp2(highest - higher)
    total = total * shrink + tl.sum(weights, axis=1)
    value = tl.load(keys_ptr + NUM_HEADS * HEAD_DIM + places, mask=mask, other=0.0)
    out = tl.dot(weights.to(value.dtype), value, out * shrink[:, None], input_precision="ieee")
    return higher, total, out


@triton.jit(do_not_specialize_on_alignment=["starts_ptr"])
def segment_kernel(
    qkv_ptr,
    starts_ptr,
    out_ptr,
    scale,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Program (b · heads + h, s) computes queries b · QUERIES … of head h in segment s, which is rows starts[s] …
    starts[s + 1]. `scale` is the scale of the scores times log2(e)."""
    head = tl.program_id(0) % NUM_HEADS
    first_query = tl.program_id(0) // NUM_HEADS * QUERIES
    start = tl.load(starts_ptr + tl.program_id(1)).to(tl.int64)
    length = (tl.load(starts_ptr + tl.program_id(1) + 1) - start).to(tl.int32)
    if first_query >= length:
        return
    row_size = NUM_HEADS * HEAD_DIM
    columns = tl.arange(0, PADDED_DIM)[None, :]
    is_column = columns < HEAD_DIM
    queries = first_query + tl.arange(0, QUERIES)
    is_query = (queries < length)[:, None] & is_column
    heads_ptr = qkv_ptr + start * (3 * row_size) + head * HEAD_DIM
    query = tl.load(heads_ptr + queries[:, None] * (3 * row_size) + columns, mask=is_query, other=0.0)
    keys_ptr = heads_ptr + row_size
    highest = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    out = tl.zeros((QUERIES, PADDED_DIM), tl.float32)
    rows = tl.arange(0, KEYS)
    whole = length // KEYS * KEYS
    for first in range(0, whole, KEYS):
        highest, total, out = _attend_keys(
            query, keys_ptr, first + rows, columns, rows >= 0, is_column, highest, total, out, scale,
            NUM_HEADS=NUM_HEADS, HEAD_DIM=HEAD_DIM, IS_WHOLE=True,
        )  # fmt: skip
    if whole < length:
        highest, total, out = _attend_keys(
            query, keys_ptr, whole + rows, columns, whole + rows < length, is_column, highest, total, out, scale,
            NUM_HEADS=NUM_HEADS, HEAD_DIM=HEAD_DIM, IS_WHOLE=False,
        )  # fmt: skip
    places = (start + queries)[:, None] * row_size + head * HEAD_DIM + columns
    tl.store(out_ptr + places, (out / total[:, None]).to(out_ptr.dtype.element_ty), mask=is_query)


@triton.jit
def norm_kernel(
    x_ptr,
    update_ptr,
    scale_ptr,
    weight_ptr,
    bias_ptr,
    offset_ptr,
    out_ptr,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_UPDATE: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    HAS_OFFSET: tl.constexpr,
    IS_CENTERED: tl.constexpr,
):
    """Normalize one row per program. HAS_UPDATE: add the update, times scale if given, to x first, and normalize the
    rounded sum. HAS_OFFSET: normalize x + offset without changing x. IS_CENTERED: layer norm with a bias, else RMS
    norm."""
    columns = tl.arange(0, BLOCK)
    is_inside = columns < SIZE
    places = tl.program_id(0).to(tl.int64) * SIZE + columns
    stored = tl.load(x_ptr + places, mask=is_inside, other=0.0)
    x = stored.to(tl.float32)
    if HAS_UPDATE:
        update = tl.load(update_ptr + places, mask=is_inside, other=0.0).to(tl.float32)
        if HAS_SCALE:
            update *= tl.load(scale_ptr + columns, mask=is_inside, other=0.0).to(tl.float32)
        total = (x + update).to(stored.dtype)
        tl.store(x_ptr + places, total, mask=is_inside)
        x = total.to(tl.float32)
    if HAS_OFFSET:
        x += tl.load(offset_ptr + columns, mask=is_inside, other=0.0)
    weight = tl.load(weight_ptr + columns, mask=is_inside, other=0.0).to(tl.float32)
    if IS_CENTERED:
        x = tl.where(is_inside, x - tl.sum(x, axis=0) / SIZE, 0.0)
    normed = x / tl.sqrt(tl.sum(x * x, axis=0) / SIZE + eps) * weight
    if IS_CENTERED:
        normed += tl.load(bias_ptr + columns, mask=is_inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + places, normed.to(stored.dtype), mask=is_inside)


@triton.jit
def quick_gelu_kernel(x_ptr, size, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places, mask=places < size, other=0.0)
    wide = x.to(tl.float32)
    tl.store(x_ptr + places, (wide * tl.sigmoid(1.702 * wide)).to(x.dtype), mask=places < size)


def rotate_(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate the queries and keys in qkv [P, 3, heads, head_dim] in place. cos, sin float32 [P, head_dim / 2]."""
    num_rows, _, num_heads, head_dim = qkv.shape
    assert qkv.is_contiguous() and cos.is_contiguous() and sin.is_contiguous()
    heads = min(ROTATED_HEADS, power_of_2_from(2 * num_heads))
    rotate_kernel[(num_rows, -(-2 * num_heads // heads))](
        qkv,
        cos,
        sin,
        NUM_HEADS=num_heads,
        HALF=head_dim // 2,
        BLOCK_HALF=power_of_2_from(head_dim // 2),
        HEADS=heads,
    )


def attend_windows(
    qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, starts: torch.Tensor, longest: int
) -> torch.Tensor:
    """Rotate queries and keys, and compute full attention inside every window: qkv [P, 3, heads, head_dim] to
    [P, heads, head_dim].

    cos, sin float32 [P, head_dim / 2]. starts int32 [W + 1]: window w is rows starts[w] … starts[w + 1]. The windows
    cover all rows, and none is longer than `longest` ≤ LONGEST_WINDOW.
    """
    num_rows, _, num_heads, head_dim = qkv.shape
    assert qkv.is_contiguous() and cos.is_contiguous() and sin.is_contiguous() and longest <= LONGEST_WINDOW
    out = torch.empty((num_rows, num_heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    window_kernel[((len(starts) - 1) * num_heads,)](
        qkv,
        cos,
        sin,
        starts,
        out,
        LOG2_E / head_dim**0.5,
        NUM_HEADS=num_heads,
        HALF=head_dim // 2,
        BLOCK_HALF=max(16, power_of_2_from(head_dim // 2)),
        BLOCK=max(16, power_of_2_from(longest)),
        num_warps=4,
    )
    return out


def attend_segments(qkv: torch.Tensor, starts: torch.Tensor, longest: int) -> torch.Tensor:
    """Compute full attention inside every segment: qkv [P, 3, heads, head_dim] to [P, heads, head_dim].

    starts int32 [S + 1]: segment s is rows starts[s] … starts[s + 1]. The segments cover all rows, and none is longer
    than `longest`.
    """
    num_rows, _, num_heads, head_dim = qkv.shape
    assert qkv.is_contiguous()
    out = torch.empty((num_rows, num_heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    queries, keys, num_warps, num_stages = (64, 32, 4, 1) if qkv.dtype == torch.float32 else SEGMENT_BLOCKS
    segment_kernel[(-(-longest // queries) * num_heads, len(starts) - 1)](
        qkv,
        starts,
        out,
        LOG2_E / head_dim**0.5,
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        PADDED_DIM=max(16, power_of_2_from(head_dim)),
        QUERIES=queries,
        KEYS=keys,
        num_warps=num_warps,
        num_stages=num_stages,
    )
    return out


def norm(
    x: torch.Tensor,
    update: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    *,
    scale: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the norm over the last axis of x, or of x + update · scale, which is also written to x, or of the sum with
    an offset (float32). Layer norm if there is a bias, else RMS norm. All tensors are contiguous."""
    assert x.is_contiguous() and (update is None or update.is_contiguous())
    out = torch.empty_like(x)
    size = x.shape[-1]
    block = power_of_2_from(size)
    norm_kernel[(x.numel() // size,)](
        x,
        x if update is None else update,
        weight if scale is None else scale,
        weight,
        weight if bias is None else bias,
        weight if offset is None else offset,
        out,
        eps,
        SIZE=size,
        BLOCK=block,
        HAS_UPDATE=update is not None,
        HAS_SCALE=scale is not None,
        HAS_OFFSET=offset is not None,
        IS_CENTERED=bias is not None,
        num_warps=4 if block <= 4096 else 8,
    )
    return out


def quick_gelu_(x: torch.Tensor) -> torch.Tensor:
    """Compute x · sigmoid(1.702 x) in place, for a contiguous x."""
    assert x.is_contiguous()
    if x.numel():
        quick_gelu_kernel[(-(-x.numel() // SPAN),)](x, x.numel(), BLOCK=SPAN, num_warps=8)
    return x

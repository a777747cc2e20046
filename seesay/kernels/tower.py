"""Triton kernels that only vision towers need: rotation of queries and keys, alone and within attention inside windows;
norms of a sum; quick GELU.

Strides count elements. All arithmetic is in float32; what goes into a matrix product is rounded to the tensors' type.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

WINDOW_BLOCK = 64
"""Rows of a window that one program takes, as queries and as keys at a time: Qwen2.5-VL's windows have as many."""
SPAN = 4096
"""Elements that one program of an elementwise kernel takes."""
ROTATED_HEADS = 16
"""Heads of a row that one program turns."""


@triton.jit
def _load_turned(x_ptr, places, mask, cos, sin, HALF: tl.constexpr):
    """Both halves of heads at `places`, turned by their rows' angles and rounded as they were stored."""
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
    """Program (r, p) turns heads p · HEADS … of row r, of its queries and keys."""
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


@triton.jit
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
    NUM_BLOCKS: tl.constexpr,
):
    """Program (w · heads + h, b): queries b · BLOCK … of head h in window w, which is rows starts[w] … starts[w + 1].

    A head's two halves are apart: their sizes are padded to powers of two, and rotation pairs them. `scale` is that of
    the scores times log2(e)."""
    head = tl.program_id(0) % NUM_HEADS
    window = tl.program_id(0) // NUM_HEADS
    start = tl.load(starts_ptr + window).to(tl.int64)
    length = (tl.load(starts_ptr + window + 1) - start).to(tl.int32)
    first_query = tl.program_id(1) * BLOCK
    if first_query >= length:
        return
    pairs = tl.arange(0, BLOCK_HALF)
    is_pair = (pairs < HALF)[None, :]
    row_size = NUM_HEADS * 2 * HALF
    queries = first_query + tl.arange(0, BLOCK)
    is_query = (queries < length)[:, None] & is_pair
    angles = (start + queries)[:, None] * HALF + pairs[None, :]
    cos = tl.load(cos_ptr + angles, mask=is_query, other=0.0)
    sin = tl.load(sin_ptr + angles, mask=is_query, other=0.0)
    places = (start + queries)[:, None] * (3 * row_size) + head * (2 * HALF) + pairs[None, :]
    query_first, query_last = _load_turned(qkv_ptr, places, is_query, cos, sin, HALF)

    highest = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    out_first = tl.zeros((BLOCK, BLOCK_HALF), tl.float32)
    out_last = tl.zeros((BLOCK, BLOCK_HALF), tl.float32)
    for block in range(NUM_BLOCKS):
        keys = block * BLOCK + tl.arange(0, BLOCK)
        is_key = (keys < length)[:, None] & is_pair
        if NUM_BLOCKS > 1:
            angles = (start + keys)[:, None] * HALF + pairs[None, :]
            cos = tl.load(cos_ptr + angles, mask=is_key, other=0.0)
            sin = tl.load(sin_ptr + angles, mask=is_key, other=0.0)
        places = (start + keys)[:, None] * (3 * row_size) + row_size + head * (2 * HALF) + pairs[None, :]
        key_first, key_last = _load_turned(qkv_ptr, places, is_key, cos, sin, HALF)
        value_first = tl.load(qkv_ptr + places + row_size, mask=is_key, other=0.0)
        value_last = tl.load(qkv_ptr + places + row_size + HALF, mask=is_key, other=0.0)
        scores = tl.dot(query_first, tl.trans(key_first), input_precision="ieee")
        scores = tl.dot(query_last, tl.trans(key_last), scores, input_precision="ieee") * scale
        scores = tl.where((keys < length)[None, :], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, axis=1))
        shrink = tl.exp2(highest - higher)
        weights = tl.exp2(scores - higher[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        rounded = weights.to(value_first.dtype)
        out_first = tl.dot(rounded, value_first, out_first * shrink[:, None], input_precision="ieee")
        out_last = tl.dot(rounded, value_last, out_last * shrink[:, None], input_precision="ieee")
        highest = higher
    share = (1.0 / total)[:, None]
    places = (start + queries)[:, None] * row_size + head * (2 * HALF) + pairs[None, :]
    tl.store(out_ptr + places, (out_first * share).to(out_ptr.dtype.element_ty), mask=is_query)
    tl.store(out_ptr + places + HALF, (out_last * share).to(out_ptr.dtype.element_ty), mask=is_query)


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
    """One row per program. HAS_UPDATE: the update, times scale if there is one, is added to x first, and the norm is
    that of the sum as it was rounded. HAS_OFFSET: the norm is that of x + offset; x stays. IS_CENTERED: layer norm with
    a bias, else RMS norm."""
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


@cache
def _power_of_2_from(size: int) -> int:
    return int(triton.next_power_of_2(size))


def rotate_(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Turn the queries and keys in qkv [P, 3, heads, head_dim] in place. cos, sin float32 [P, head_dim / 2]."""
    num_rows, _, num_heads, head_dim = qkv.shape
    assert qkv.is_contiguous() and cos.is_contiguous() and sin.is_contiguous()
    heads = min(ROTATED_HEADS, _power_of_2_from(2 * num_heads))
    rotate_kernel[(num_rows, -(-2 * num_heads // heads))](
        qkv,
        cos,
        sin,
        NUM_HEADS=num_heads,
        HALF=head_dim // 2,
        BLOCK_HALF=_power_of_2_from(head_dim // 2),
        HEADS=heads,
    )


def attend_windows(
    qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, starts: torch.Tensor, longest: int
) -> torch.Tensor:
    """Full attention inside every window, of queries and keys that are turned here: qkv [P, 3, heads, head_dim] to
    [P, heads, head_dim].

    cos, sin float32 [P, head_dim / 2]. starts int32 [W + 1]: window w is rows starts[w] … starts[w + 1], all windows
    together all rows, none longer than `longest`.
    """
    num_rows, _, num_heads, head_dim = qkv.shape
    assert qkv.is_contiguous() and cos.is_contiguous() and sin.is_contiguous()
    out = torch.empty((num_rows, num_heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    block = min(WINDOW_BLOCK, max(16, _power_of_2_from(longest)))
    num_blocks = -(-longest // block)
    window_kernel[((len(starts) - 1) * num_heads, num_blocks)](
        qkv,
        cos,
        sin,
        starts,
        out,
        1.4426950408889634 / head_dim**0.5,
        NUM_HEADS=num_heads,
        HALF=head_dim // 2,
        BLOCK_HALF=max(16, _power_of_2_from(head_dim // 2)),
        BLOCK=block,
        NUM_BLOCKS=num_blocks,
        num_warps=4,
        num_stages=1,
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
    """The norm over the last axis of x, or of x + update · scale, which is then written to x; with an offset (float32)
    that of the sum with it. Layer norm where there is a bias, else RMS norm. All tensors are dense."""
    assert x.is_contiguous() and (update is None or update.is_contiguous())
    out = torch.empty_like(x)
    size = x.shape[-1]
    block = _power_of_2_from(size)
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
    """x · sigmoid(1.702 x) in place, for a dense x."""
    assert x.is_contiguous()
    if x.numel():
        quick_gelu_kernel[(-(-x.numel() // SPAN),)](x, x.numel(), BLOCK=SPAN, num_warps=8)
    return x

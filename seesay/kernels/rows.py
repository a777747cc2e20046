"""Triton kernels of the operations that treat each token by itself: norm, rotation, SiLU, writes by row number.

Strides count elements. All arithmetic is in float32.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

MAX_NORM_TILE = 1024
"""Most elements of several short rows that one program takes: the norms of heads are that short."""
SPAN = 1024
"""Elements of a row that one program multiplies or copies."""
HEADS_PER_PROGRAM = 16


@triton.jit(do_not_specialize=["num_rows"])
def norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    num_rows,
    outer_stride,
    inner_stride,
    residual_stride,
    eps,
    INNER: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
):
    """Row i of x is at (i // INNER) · outer_stride + (i % INNER) · inner_stride. With ADD, x is added to the residual
    first, and the norm is that of the sum as it was rounded."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    is_inside = (rows < num_rows)[:, None] & (columns < SIZE)[None, :]
    places = ((rows // INNER) * outer_stride + (rows % INNER) * inner_stride)[:, None] + columns[None, :]
    x = tl.load(x_ptr + places, mask=is_inside, other=0.0).to(tl.float32)
    if ADD:
        targets = residual_ptr + rows[:, None] * residual_stride + columns[None, :]
        total = (x + tl.load(targets, mask=is_inside, other=0.0).to(tl.float32)).to(residual_ptr.dtype.element_ty)
        tl.store(targets, total, mask=is_inside)
        x = total.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / SIZE + eps)
    weight = tl.load(weight_ptr + columns, mask=columns < SIZE, other=0.0).to(tl.float32)
    normed = x * scale[:, None] * weight[None, :]
    tl.store(out_ptr + rows[:, None] * SIZE + columns[None, :], normed.to(out_ptr.dtype.element_ty), mask=is_inside)


@triton.jit
def rotate_kernel(
    x_ptr,
    cos_ptr,
    sin_ptr,
    token_stride,
    head_stride,
    cos_stride,
    cos_step,
    sin_stride,
    sin_step,
    NUM_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (t, p) turns heads p · HEADS … of token t by tables of 2 · HALF components, sin's first half negated."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    pairs = tl.arange(0, BLOCK)
    is_pair = pairs < HALF
    first_cos = tl.load(cos_ptr + token * cos_stride + pairs * cos_step, mask=is_pair, other=0.0).to(tl.float32)
    first_sin = tl.load(sin_ptr + token * sin_stride + pairs * sin_step, mask=is_pair, other=0.0).to(tl.float32)
    last_cos = tl.load(cos_ptr + token * cos_stride + (pairs + HALF) * cos_step, mask=is_pair, other=0.0)
    last_sin = tl.load(sin_ptr + token * sin_stride + (pairs + HALF) * sin_step, mask=is_pair, other=0.0)
    is_inside = (heads < NUM_HEADS)[:, None] & is_pair[None, :]
    places = x_ptr + token * token_stride + heads[:, None] * head_stride + pairs[None, :]
    first = tl.load(places, mask=is_inside, other=0.0).to(tl.float32)
    last = tl.load(places + HALF, mask=is_inside, other=0.0).to(tl.float32)
    turned_first = first * first_cos[None, :] + last * first_sin[None, :]
    turned_last = last * last_cos.to(tl.float32)[None, :] + first * last_sin.to(tl.float32)[None, :]
    tl.store(places, turned_first.to(x_ptr.dtype.element_ty), mask=is_inside)
    tl.store(places + HALF, turned_last.to(x_ptr.dtype.element_ty), mask=is_inside)


@triton.jit
def silu_kernel(x_ptr, out_ptr, row_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = columns < SIZE
    gate = tl.load(x_ptr + row * row_stride + columns, mask=is_inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * row_stride + SIZE + columns, mask=is_inside, other=0.0).to(tl.float32)
    product = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * SIZE + columns, product.to(out_ptr.dtype.element_ty), mask=is_inside)


@triton.jit
def scatter_kernel(
    target_ptr, rows_ptr, source_ptr, target_stride, source_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + index)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = columns < SIZE
    values = tl.load(source_ptr + index * source_stride + columns, mask=is_inside, other=0.0)
    tl.store(target_ptr + row * target_stride + columns, values.to(target_ptr.dtype.element_ty), mask=is_inside)


@cache
def _power_of_2_from(size: int) -> int:
    """Triton's function, without the time it takes: at small batches the host is what is waited for."""
    return int(triton.next_power_of_2(size))


def norm(x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The norm of x, or of x + residual (both [T, size]), which is then written to the residual."""
    size = x.shape[-1]
    if x.dim() not in (2, 3) or x.stride(-1) != 1:
        x = x.reshape(-1, size).contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_rows = out.numel() // size if size else 0
    if not num_rows:
        return out
    block = _power_of_2_from(size)
    rows = 1 if 2 * block > MAX_NORM_TILE else min(MAX_NORM_TILE // block, _power_of_2_from(num_rows))
    norm_kernel[(-(-num_rows // rows),)](
        x,
        x if residual is None else residual,
        weight,
        out,
        num_rows,
        x.stride(0),
        x.stride(1) if x.dim() == 3 else 0,
        0 if residual is None else residual.stride(0),
        eps,
        INNER=x.shape[1] if x.dim() == 3 else 1,
        SIZE=size,
        ROWS=rows,
        BLOCK=block,
        ADD=residual is not None,
        num_warps=4 if block * rows <= 2048 else 8 if block <= 8192 else 16,
    )
    return out


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    num_tokens, num_heads, _ = x.shape
    half = cos.shape[-1] // 2
    if not x.numel() or not half:
        return
    assert x.stride(-1) == 1
    heads = min(HEADS_PER_PROGRAM, _power_of_2_from(num_heads))
    rotate_kernel[(num_tokens, -(-num_heads // heads))](
        x,
        cos,
        sin,
        x.stride(0),
        x.stride(1),
        cos.stride(0),
        cos.stride(-1),
        sin.stride(0),
        sin.stride(-1),
        NUM_HEADS=num_heads,
        HALF=half,
        HEADS=heads,
        BLOCK=_power_of_2_from(half),
    )


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    size = x.shape[-1] // 2
    out = torch.empty((*x.shape[:-1], size), dtype=x.dtype, device=x.device)
    if out.numel():
        flat = x.reshape(-1, 2 * size)
        block = min(SPAN, _power_of_2_from(size))
        silu_kernel[(len(flat), -(-size // block))](flat, out, flat.stride(0), SIZE=size, BLOCK=block)
    return out


def scatter(target: torch.Tensor, rows: torch.Tensor, source: torch.Tensor) -> None:
    """target[rows[i]] = source[i], for matrices whose last axis is dense."""
    if not source.numel():
        return
    assert target.stride(1) == source.stride(1) == 1 and rows.is_contiguous()
    size = target.shape[1]
    block = min(SPAN, _power_of_2_from(size))
    scatter_kernel[(len(source), -(-size // block))](
        target, rows, source, target.stride(0), source.stride(0), SIZE=size, BLOCK=block
    )

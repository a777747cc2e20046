"""A few rows times a weight matrix, which is read at the speed of memory, with what stands before and after the product
in the same kernel: the RMS norm of the input, the gate of a gated MLP, the sum with the residual.

All arithmetic is in float32; what separate kernels would store in between is rounded to the tensors' type as they would.
Kernels are launched before the one in front of them has ended (programmatic dependent launch): the first weights come in
while the last ones of the kernel before are multiplied. Only what no kernel writes is read before `gdc_wait`.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl


class Norm(NamedTuple):
    """An RMS norm over the last axis."""

    weight: torch.Tensor
    eps: float


class Tiling(NamedTuple):
    """A program multiplies `rows` rows of the weight (twice as many with a gate), `block` columns at a time."""

    rows: int
    block: int
    num_warps: int


@triton.jit
def _load_tile(places, start, columns, is_row, SIZE: tl.constexpr, IS_EVEN: tl.constexpr):
    mask = is_row[:, None] if IS_EVEN else is_row[:, None] & (start + columns < SIZE)[None, :]
    return tl.load(places + start, mask=mask, other=0.0, eviction_policy="evict_first")


@triton.jit
def _load_input(x_ptr, norm_ptr, scale, start, columns, SIZE: tl.constexpr, IS_EVEN: tl.constexpr, NORM: tl.constexpr):
    mask = None if IS_EVEN else start + columns < SIZE
    other = None if IS_EVEN else 0.0
    stored = tl.load(x_ptr + start + columns, mask=mask, other=other)
    x = stored.to(tl.float32)
    if NORM == 1:
        x = (x * scale * tl.load(norm_ptr + start + columns, mask=mask, other=other).to(tl.float32)).to(stored.dtype)
        x = x.to(tl.float32)
    if NORM == 2:
        x = x * tl.load(norm_ptr + start + columns, mask=mask, other=other).to(tl.float32)
    return x[None, :]


@triton.jit
def gemv_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    norm_ptr,
    out_ptr,
    num_rows,
    eps,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    ADD: tl.constexpr,
    PDL: tl.constexpr,
):
    IS_EVEN: tl.constexpr = SIZE % BLOCK == 0
    LAST: tl.constexpr = (SIZE - 1) // BLOCK * BLOCK
    if PDL == 2:
        tl.extra.cuda.gdc_launch_dependents()
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = rows < num_rows
    columns = tl.arange(0, BLOCK)
    places = weight_ptr + rows.to(tl.int64)[:, None] * SIZE + columns[None, :]
    up_places = places + num_rows.to(tl.int64) * SIZE
    weight = _load_tile(places, 0, columns, is_row, SIZE, IS_EVEN)
    if GATED:
        up_weight = _load_tile(up_places, 0, columns, is_row, SIZE, IS_EVEN)
    if PDL:
        tl.extra.cuda.gdc_wait()
    if PDL == 1:
        tl.extra.cuda.gdc_launch_dependents()
    scale = 1.0
    if NORM == 1:
        everywhere = tl.arange(0, PADDED)
        x = tl.load(x_ptr + everywhere, mask=everywhere < SIZE, other=0.0).to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / SIZE + eps)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    up_total = tl.zeros((ROWS, BLOCK), tl.float32)
    squares = tl.zeros((1, BLOCK), tl.float32)
    for start in range(0, LAST, BLOCK):
        following = _load_tile(places, start + BLOCK, columns, is_row, SIZE, IS_EVEN)
        if GATED:
            up_following = _load_tile(up_places, start + BLOCK, columns, is_row, SIZE, IS_EVEN)
        x = _load_input(x_ptr, norm_ptr, scale, start, columns, SIZE, IS_EVEN, NORM)
        total += weight.to(tl.float32) * x
        weight = following
        if GATED:
            up_total += up_weight.to(tl.float32) * x
            up_weight = up_following
    x = _load_input(x_ptr, norm_ptr, scale, LAST, columns, SIZE, IS_EVEN, NORM)
    total += weight.to(tl.float32) * x
    if GATED:
        up_total += up_weight.to(tl.float32) * x
    if PDL == 3:
        tl.extra.cuda.gdc_launch_dependents()
    if NORM == 2:
        everywhere = tl.arange(0, PADDED)
        x = tl.load(x_ptr + everywhere, mask=everywhere < SIZE, other=0.0).to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / SIZE + eps)
    y = tl.sum(total, axis=1) * scale
    if HAS_BIAS:
        y += tl.load(bias_ptr + rows, mask=is_row, other=0.0).to(tl.float32)
    kind = out_ptr.dtype.element_ty
    y = y.to(kind)
    if GATED:
        up = (tl.sum(up_total, axis=1) * scale).to(kind).to(tl.float32)
        gate = y.to(tl.float32)
        y = (gate * tl.sigmoid(gate) * up).to(kind)
    if ADD:
        y = (tl.load(out_ptr + rows, mask=is_row, other=0.0).to(tl.float32) + y.to(tl.float32)).to(kind)
    tl.store(out_ptr + rows, y, mask=is_row)


def launch(x, weight, bias, norm, out, *, gated, add, tiling, pdl, norm_mode=1):
    num_rows, size = weight.shape
    num_rows = num_rows // 2 if gated else num_rows
    extra = {"launch_pdl": True} if pdl else {}
    return gemv_kernel[(-(-num_rows // tiling.rows),)](
        x,
        weight,
        weight if bias is None else bias,
        weight if norm is None else norm.weight,
        out,
        num_rows,
        0.0 if norm is None else norm.eps,
        SIZE=size,
        PADDED=triton.next_power_of_2(size),
        ROWS=tiling.rows,
        BLOCK=tiling.block,
        HAS_BIAS=bias is not None,
        NORM=0 if norm is None else norm_mode,
        GATED=gated,
        ADD=add,
        PDL=pdl,
        num_warps=tiling.num_warps,
        **extra,
    )

"""Triton kernels of per-token operations: norm, activation, scatter by row.

Strides count elements. All arithmetic is in float32.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seesay.kernels.gpu import has_dependent_launch, nvidia_options
from seesay.kernels.sizes import power_of_2_from

MAX_NORM_TILE = 1024
"""Largest number of elements when one program processes several short rows, such as heads."""
SPAN = 1024
"""Elements of a row per program of a multiplication or copy."""


@triton.jit(do_not_specialize=["num_rows"])
def norm_kernel(
    x_ptr,
    other_ptr,
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
    HAS_OTHER: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Row i of x is at (i // INNER) · outer_stride + (i % INNER) · inner_stride. ADD: add x to the residual first, and
    normalize the rounded sum. HAS_OTHER: x is the rounded sum of two summands."""
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    is_inside = (rows < num_rows)[:, None] & (columns < SIZE)[None, :]
    places = ((rows // INNER) * outer_stride + (rows % INNER) * inner_stride)[:, None] + columns[None, :]
    x = tl.load(x_ptr + places, mask=is_inside, other=0.0).to(tl.float32)
    if HAS_OTHER:
        own = rows[:, None] * SIZE + columns[None, :]
        x += tl.load(other_ptr + own, mask=is_inside, other=0.0).to(tl.float32)
        x = x.to(x_ptr.dtype.element_ty).to(tl.float32)
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
def activate(x, ACTIVATION: tl.constexpr):
    """Apply SiLU, GELU with the error function (Hendrycks & Gimpel 2016), GELU with the tanh approximation, computed
    as a sigmoid of twice its argument, or the square of what is more than 0."""
    if ACTIVATION == "relu2":
        x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
        return x * x
    elif ACTIVATION == "silu":
        return x * tl.sigmoid(x)
    elif ACTIVATION == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    else:
        return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


@triton.jit
def multiply_gate(x, up, ACTIVATION: tl.constexpr):
    """Return the activation of a gate times up, or what gpt-oss computes of both (see `Activation`)."""
    if ACTIVATION == "clamped_silu":
        x = tl.minimum(x, 7.0, propagate_nan=tl.PropagateNan.ALL)
        up = tl.clamp(up, -7.0, 7.0, propagate_nan=tl.PropagateNan.ALL)
        return x * tl.sigmoid(1.702 * x) * (up + 1.0)
    else:
        return activate(x, ACTIVATION) * up


@triton.jit
def activation_kernel(
    x_ptr,
    out_ptr,
    row_stride,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ACTIVATION: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = columns < SIZE
    gate = tl.load(x_ptr + row * row_stride + columns, mask=is_inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * row_stride + SIZE + columns, mask=is_inside, other=0.0).to(tl.float32)
    product = multiply_gate(gate, up, ACTIVATION)
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


def norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    dtype: torch.dtype | None = None,
    *,
    other: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the norm of x, or of x + residual (both [T, size]), in `dtype`, by default that of x. The sum is written
    to the residual. With `other` [T, size], contiguous, x + other, rounded, takes the place of x."""
    size = x.shape[-1]
    assert other is None or (other.shape == x.shape and other.dtype == x.dtype and other.is_contiguous())
    if x.dim() not in (2, 3) or x.stride(-1) != 1:
        x = x.reshape(-1, size).contiguous()
    out = torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)
    num_rows = out.numel() // size if size else 0
    if not num_rows:
        return out
    block, is_dependent = power_of_2_from(size), has_dependent_launch(x.get_device())
    rows = 1 if 2 * block > MAX_NORM_TILE else MAX_NORM_TILE // block
    norm_kernel[(-(-num_rows // rows),)](
        x,
        x if other is None else other,
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
        HAS_OTHER=other is not None,
        IS_DEPENDENT=is_dependent,
        num_warps=4 if block * rows <= 2048 else 8 if block <= 8192 else 16,
        **nvidia_options(launch_pdl=is_dependent),
    )
    return out


def act_and_mul(x: torch.Tensor, activation: str) -> torch.Tensor:
    """See `Ops.act_and_mul`."""
    size = x.shape[-1] // 2
    out = torch.empty((*x.shape[:-1], size), dtype=x.dtype, device=x.device)
    if out.numel():
        flat = x.reshape(-1, 2 * size)
        block, is_dependent = min(SPAN, power_of_2_from(size)), has_dependent_launch(x.get_device())
        activation_kernel[(len(flat), -(-size // block))](
            flat,
            out,
            flat.stride(0),
            SIZE=size,
            BLOCK=block,
            ACTIVATION=activation,
            IS_DEPENDENT=is_dependent,
            **nvidia_options(launch_pdl=is_dependent),
        )
    return out


def scatter(target: torch.Tensor, rows: torch.Tensor, source: torch.Tensor) -> None:
    """Set target[rows[i]] = source[i], for matrices whose last axis is contiguous."""
    if not source.numel():
        return
    assert target.stride(1) == source.stride(1) == 1 and rows.is_contiguous()
    size = target.shape[1]
    block = min(SPAN, power_of_2_from(size))
    scatter_kernel[(len(source), -(-size // block))](
        target, rows, source, target.stride(0), source.stride(0), SIZE=size, BLOCK=block
    )

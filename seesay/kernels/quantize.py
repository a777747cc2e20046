"""Rows of activations in numbers of one byte, FP8 (e4m3) or int8, each row or group of its elements with a scale of its
own: rows as they are, their RMS norm, or the activation of a gated layer.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from seesay.kernels.gpu import has_dependent_launch, nvidia_options
from seesay.kernels.sizes import power_of_2_from
from seesay.kernels.token_kernels import act_and_mul, multiply_gate, norm

_LARGEST_SPAN = 8192
_MAX_ROW = 16384
"""Longest row that one program keeps in registers as float32."""
_MAX_ACTIVATED_ROW = 32768
"""Longest row that one program keeps in registers in 16 bits."""

_ROUNDING: tl.constexpr = tl.constexpr(1.5 * 2**23)
"""A float32 of this size has no digits behind the point, so adding it rounds to the nearest, ties to even."""

Quantized = tuple[torch.Tensor, torch.Tensor]
"""Numbers [N, K], and scales float32 [N, number of groups]."""


@triton.jit
def _is_nan(x):
    return x != x


@triton.jit
def _to_scale(largest, has_nan, MAX: tl.constexpr):
    """Return the scale of elements whose largest absolute value is given; NaN if NaN is among them."""
    return tl.where(has_nan, float("nan"), tl.maximum(largest, 1e-12) / MAX)


@triton.jit
def _to_numbers(x, scale, MAX: tl.constexpr, kind: tl.constexpr):
    """Return x / scale as FP8 or, rounded to the nearest, as int8."""
    quotient = x / scale
    if kind == tl.int8:
        quotient = tl.where(tl.abs(quotient) < 2 * MAX, quotient, 0.0)  # NaN and infinity are in the scale
        quotient = (quotient + _ROUNDING) - _ROUNDING
    return quotient.to(kind)


@triton.jit
def quantize_rows_kernel(
    x_ptr,
    out_ptr,
    scale_ptr,
    x_stride,
    SIZE: tl.constexpr,
    SPAN: tl.constexpr,
    MAX: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program i writes row i of x [N, SIZE] divided by its scale to out [N, SIZE], and the scale to scale [N].

    With something in x that is not finite, the scale is not finite.
    """
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, SPAN)
    largest = tl.zeros([SPAN], tl.float32)
    bad = tl.zeros([SPAN], tl.int32)
    for first in range(0, SIZE, SPAN):
        is_element = first + columns < SIZE
        x = tl.load(x_ptr + row * x_stride + first + columns, mask=is_element, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(x))
        bad = bad | _is_nan(x).to(tl.int32)
    scale = _to_scale(tl.max(largest, axis=0), tl.max(bad, axis=0) > 0, MAX)
    tl.store(scale_ptr + row, scale)
    for first in range(0, SIZE, SPAN):
        is_element = first + columns < SIZE
        x = tl.load(x_ptr + row * x_stride + first + columns, mask=is_element, other=0.0).to(tl.float32)
        numbers = _to_numbers(x, scale, MAX, out_ptr.dtype.element_ty)
        tl.store(out_ptr + row * SIZE + first + columns, numbers, mask=is_element)


@triton.jit
def _store_quantized(
    x, is_element, out_ptr, scale_ptr, num_groups, BLOCK: tl.constexpr, GROUP: tl.constexpr, MAX: tl.constexpr
):
    """Write x [BLOCK], zero where there is no element, in groups of GROUP that divides BLOCK. Of their scales the first
    `num_groups` are written."""
    groups = tl.reshape(x, [BLOCK // GROUP, GROUP])
    has_nan = tl.max(_is_nan(groups).to(tl.int32), axis=1) > 0
    scale = _to_scale(tl.max(tl.abs(groups), axis=1), has_nan, MAX)
    numbers = tl.arange(0, BLOCK // GROUP)
    tl.store(scale_ptr + numbers, scale, mask=numbers < num_groups)
    quantized = _to_numbers(groups, scale[:, None], MAX, out_ptr.dtype.element_ty)
    tl.store(out_ptr + tl.arange(0, BLOCK), tl.reshape(quantized, [BLOCK]), mask=is_element)


@triton.jit
def quantize_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    scale_ptr,
    x_stride,
    residual_stride,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    MAX: tl.constexpr,
    ADD: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program i writes the RMS norm of row i of x in quantized form. ADD: add x to the residual first, and normalize
    the rounded sum. The norm is rounded to the type of x, as a kernel of its own would round it."""
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    is_element = columns < SIZE
    stored = tl.load(x_ptr + row * x_stride + columns, mask=is_element, other=0.0)
    x = stored.to(tl.float32)
    if ADD:
        targets = residual_ptr + row * residual_stride + columns
        total = (x + tl.load(targets, mask=is_element, other=0.0).to(tl.float32)).to(residual_ptr.dtype.element_ty)
        tl.store(targets, total, mask=is_element)
        x = total.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / SIZE + eps)
    normed = x * scale * tl.load(weight_ptr + columns, mask=is_element, other=0.0).to(tl.float32)
    normed = normed.to(stored.dtype).to(tl.float32)
    num_groups: tl.constexpr = (SIZE + GROUP - 1) // GROUP
    _store_quantized(
        normed, is_element, out_ptr + row * SIZE, scale_ptr + row * num_groups, num_groups, BLOCK, GROUP, MAX
    )


@triton.jit
def quantize_activation_kernel(
    x_ptr,
    out_ptr,
    scale_ptr,
    x_stride,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ACTIVATION: tl.constexpr,
    MAX: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program i writes activation(first half) · second half of row i of x [N, 2 SIZE] in quantized form, rounded to the
    type of x before, as a kernel of its own would round it. The row is read once and kept in this type."""
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    is_element = columns < SIZE
    product = _activated(x_ptr + row * x_stride, columns, is_element, SIZE, ACTIVATION)
    has_nan = tl.max(_is_nan(product).to(tl.int32), axis=0) > 0
    scale = _to_scale(tl.max(tl.abs(product).to(tl.float32), axis=0), has_nan, MAX)
    tl.store(scale_ptr + row, scale)
    numbers = _to_numbers(product.to(tl.float32), scale, MAX, out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * SIZE + columns, numbers, mask=is_element)


@triton.jit
def quantize_groups_kernel(
    x_ptr,
    out_ptr,
    scale_ptr,
    x_stride,
    SIZE: tl.constexpr,
    SPAN: tl.constexpr,
    GROUP: tl.constexpr,
    ACTIVATION: tl.constexpr,
    MAX: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Program (i, j) writes elements j · SPAN … of row i of x [N, SIZE], or of activation(first half) · second half of
    x [N, 2 SIZE], in groups of GROUP elements with a scale of their own."""
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * SPAN
    columns = tl.arange(0, SPAN)
    is_element = first + columns < SIZE
    if ACTIVATION is None:
        x = tl.load(x_ptr + row * x_stride + first + columns, mask=is_element, other=0.0).to(tl.float32)
    else:
        x = _activated(x_ptr + row * x_stride + first, columns, is_element, SIZE, ACTIVATION).to(tl.float32)
    num_groups: tl.constexpr = (SIZE + GROUP - 1) // GROUP
    group = first // GROUP
    own_scales = scale_ptr + row * num_groups + group
    _store_quantized(x, is_element, out_ptr + row * SIZE + first, own_scales, num_groups - group, SPAN, GROUP, MAX)


@triton.jit
def _activated(x_ptr, columns, is_element, SIZE: tl.constexpr, ACTIVATION: tl.constexpr):
    """Return activation(gate) · up, rounded to their type; up lies SIZE behind the gate."""
    gate = tl.load(x_ptr + columns, mask=is_element, other=0.0)
    up = tl.load(x_ptr + SIZE + columns, mask=is_element, other=0.0).to(tl.float32)
    return multiply_gate(gate.to(tl.float32), up, ACTIVATION).to(gate.dtype)


def quantize_rows(x: torch.Tensor, dtype: torch.dtype, largest: float, group_size: int | None = None) -> Quantized:
    """Return x [N, K] in `dtype` with the scales that give it back. The largest number of a row, or of a group of
    `group_size`, becomes `largest`."""
    assert x.stride(1) == 1
    if group_size is not None:
        return _quantize_groups(x, x.shape[1], None, dtype, largest, group_size)
    out, scale = _make_outputs(x, x.shape[1], dtype, None)
    span = min(_LARGEST_SPAN, power_of_2_from(x.shape[1]))
    _launch(
        quantize_rows_kernel,
        (len(x),),
        x,
        out,
        scale,
        x.stride(0),
        SIZE=x.shape[1],
        SPAN=span,
        MAX=largest,
        num_warps=4 if span <= 2048 else 8,
    )
    return out, scale


def quantize_norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    *,
    dtype: torch.dtype,
    largest: float,
    group_size: int | None = None,
) -> Quantized:
    """Return the RMS norm of x [N, K], or of x + residual, as `quantize_rows` of it would. The sum is written to the
    residual."""
    num_rows, size = x.shape
    assert x.stride(1) == 1 and (residual is None or residual.stride(1) == 1)
    if size > _MAX_ROW:
        return quantize_rows(norm(x, residual, weight, eps), dtype, largest, group_size)
    out, scale = _make_outputs(x, size, dtype, group_size)
    block = power_of_2_from(size)
    if group_size is not None:
        block = max(block, group_size)
    _launch(
        quantize_norm_kernel,
        (num_rows,),
        x,
        x if residual is None else residual,
        weight,
        out,
        scale,
        x.stride(0),
        0 if residual is None else residual.stride(0),
        eps,
        SIZE=size,
        BLOCK=block,
        GROUP=group_size or block,
        MAX=largest,
        ADD=residual is not None,
        num_warps=4 if block <= 2048 else 8 if block <= 8192 else 16,
    )
    return out, scale


def quantize_activation(
    x: torch.Tensor, activation: str, *, dtype: torch.dtype, largest: float, group_size: int | None = None
) -> Quantized:
    """Return activation(first half) · second half of x [N, 2 K], as `quantize_rows` of it would."""
    assert x.stride(1) == 1
    size = x.shape[1] // 2
    if group_size is not None:
        return _quantize_groups(x, size, activation, dtype, largest, group_size)
    if size > _MAX_ACTIVATED_ROW:
        return quantize_rows(act_and_mul(x, activation), dtype, largest)
    out, scale = _make_outputs(x, size, dtype, None)
    block = power_of_2_from(size)
    _launch(
        quantize_activation_kernel,
        (len(x),),
        x,
        out,
        scale,
        x.stride(0),
        SIZE=size,
        BLOCK=block,
        ACTIVATION=activation,
        MAX=largest,
        num_warps=min(16, max(4, block // 1024)),
        **nvidia_options(maxnreg=64),  # so that a multiprocessor has two programs: one loads while the other computes
    )
    return out, scale


def _quantize_groups(
    x: torch.Tensor, size: int, activation: str | None, dtype: torch.dtype, largest: float, group_size: int
) -> Quantized:
    out, scale = _make_outputs(x, size, dtype, group_size)
    span = max(group_size, min(1024, power_of_2_from(size)))
    _launch(
        quantize_groups_kernel,
        (len(x), -(-size // span)),
        x,
        out,
        scale,
        x.stride(0),
        SIZE=size,
        SPAN=span,
        GROUP=group_size,
        ACTIVATION=activation,
        MAX=largest,
    )
    return out, scale


def _make_outputs(x: torch.Tensor, size: int, dtype: torch.dtype, group_size: int | None) -> Quantized:
    num_groups = 1 if group_size is None else -(-size // group_size)
    out = torch.empty(len(x), size, dtype=dtype, device=x.device)
    return out, torch.empty(len(x), num_groups, dtype=torch.float32, device=x.device)


def _launch(kernel: Any, grid: tuple[int, ...], x: torch.Tensor, *arguments: Any, **constants: Any) -> None:
    """Run a kernel over the rows of x, if there are any. It may begin while the kernel before it still runs."""
    if len(x):
        is_dependent = has_dependent_launch(x.get_device())
        kernel[grid](x, *arguments, **constants, IS_DEPENDENT=is_dependent, **nvidia_options(launch_pdl=is_dependent))

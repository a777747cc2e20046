"""The product of a few rows with a weight matrix. It is memory-bound by the matrix, so the operations around it are
fused: the RMS norm of the input, the gate of a gated layer, the sum with the residual stream.

One row is multiplied with plain arithmetic, up to MAX_ROWS rows with tensor cores. Weights are of the type of x, or of
one byte, FP8 or int8, with scales. Sums are in float32. Intermediate
results are rounded as separate kernels would round them. Programs start to read their weights before the kernel that
computes x has ended (programmatic dependent launch).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from seesay.kernels.few_rows.few_row_kernels import few_rows_kernel, one_row_kernel, parted_inputs_kernel
from seesay.kernels.few_rows.few_row_tilings import MAX_ROWS, Tiling, tile_few_rows, tile_one_row
from seesay.kernels.gpu import has_dependent_launch, nvidia_options
from seesay.kernels.low_rank import SlotProducts
from seesay.kernels.low_rank_row import multiply_row
from seesay.kernels.sizes import power_of_2_from
from seesay.kernels.token_kernels import norm as rms_norm

_PREFETCH_ALIGNMENT = 16
"""Prefetches begin at multiples of so many bytes."""


class _Operands(NamedTuple):
    """Arguments of all kernels. A missing tensor is None."""

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    scale: torch.Tensor | None
    out: torch.Tensor

    def or_any(self, tensor: torch.Tensor | None) -> torch.Tensor:
        """Return a tensor, or one in its place that is not read."""
        return self.x if tensor is None else tensor


def multiply(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    scale: torch.Tensor | None = None,
    group_size: int | None = None,
    norm: tuple[torch.Tensor, float] | None = None,
    activation: str | None = None,
    add_to: torch.Tensor | None = None,
    products: SlotProducts | None = None,
    tiling: Tiling | None = None,
) -> torch.Tensor:
    """Return x Wᵀ + b [N, out] for x [N, in], N ≤ MAX_ROWS, and weight [out, in]. N > 1 requires 16-bit types.

    scale: for a weight in FP8 or int8 without NaN, float32 [out], which multiplies its rows; or [out, groups of
    `group_size` inputs]. norm: (weight [in], eps) of an RMS norm of x.
    activation: return the activation of the first half of the product times the second half. add_to [N, out]: add the
    product to it, and return it. products: of low rank, which are added to the product; only with one row of 16 bits
    and a weight of its type. tiling: by default one that fits the sizes.
    """
    num_outputs, size = weight.shape
    num_rows = len(x)
    assert x.shape == (num_rows, size) and x.stride(1) == 1 and weight.is_contiguous() and 0 < num_rows <= MAX_ROWS
    if activation is not None:
        num_outputs //= 2
    out = x.new_empty(num_rows, num_outputs) if add_to is None else add_to
    assert out.stride(1) == 1
    operands, is_dependent = _Operands(x, weight, bias, scale, out), has_dependent_launch(x.get_device())
    if tiling is None:
        tiling = _pick_tiling(operands, group_size)
    options = {
        "SIZE": size,
        "OUTPUTS": tiling.num_outputs,
        "HAS_BIAS": bias is not None,
        "ADDS": add_to is not None,
        "IS_DEPENDENT": is_dependent,
        "num_warps": tiling.num_warps,
        **nvidia_options(launch_pdl=is_dependent),
    }
    if not tiling.num_stages:
        _launch_one_row(operands, norm, products, tiling, options | {"GATE": activation})
        return out
    assert products is None
    if norm is not None:
        operands = operands._replace(x=rms_norm(x, None, *norm, dtype=_pick_type(x.dtype, weight.dtype)))
    options |= {"ROWS": _pad_rows(num_rows), "STAGES": tiling.num_stages, "IS_COMPILED": x.get_device() >= 0}
    if tiling.num_parts > 1:
        assert scale is not None and group_size is None and activation is None
        _launch_parted(operands, tiling, options)
    else:
        _launch_few(operands, group_size, tiling, options | {"GATE": activation})
    return out


def _pick_tiling(operands: _Operands, group_size: int | None) -> Tiling:
    x, weight, _, scale, out = operands
    (num_rows, size), num_outputs = x.shape, out.shape[1]
    is_gated = len(weight) > num_outputs
    if num_rows == 1 and group_size is None:
        return tile_one_row(num_outputs, size, is_gated, weight.itemsize if x.itemsize == 2 else x.itemsize)
    can_part = weight.itemsize == 1 and scale is not None and group_size is None
    return tile_few_rows(_pad_rows(num_rows), num_outputs, size, is_gated, can_part)


def _pick_type(x_type: torch.dtype, weight_type: torch.dtype) -> torch.dtype:
    """Return the type in which tensor cores multiply a norm. FP8 becomes float16 in fewer instructions than bfloat16,
    and a norm is far within its range: at most the root of its size times its weight. Nothing bounds other inputs: they
    stay in their own type."""
    return torch.float16 if weight_type == torch.float8_e4m3fn and x_type.itemsize == 2 else x_type


def _pad_rows(num_rows: int) -> int:
    """Return the number of columns of a tile of tensor cores for so many rows."""
    return max(8, power_of_2_from(num_rows))


def _launch_one_row(
    operands: _Operands,
    norm: tuple[torch.Tensor, float] | None,
    products: SlotProducts | None,
    tiling: Tiling,
    options: dict[str, Any],
) -> None:
    x, weight, bias, scale, out = operands
    size, num_outputs = weight.shape[1], out.shape[1]
    term = None if products is None else multiply_row(x, products, norm)
    one_row_kernel[(-(-num_outputs // tiling.num_outputs),)](
        x,
        weight,
        operands.or_any(bias),
        operands.or_any(scale),
        x if norm is None else norm[0],
        out,
        operands.or_any(term),
        num_outputs,
        0.0 if norm is None else norm[1],
        HAS_TERM=term is not None,
        PADDED_SIZE=power_of_2_from(size),
        SPAN=tiling.span,
        HAS_SCALE=scale is not None,
        HAS_NORM=norm is not None,
        **options,
    )


def _launch_few(operands: _Operands, group_size: int | None, tiling: Tiling, options: dict[str, Any]) -> None:
    x, weight, bias, scale, out = operands
    num_outputs = out.shape[1]
    few_rows_kernel[(-(-num_outputs // tiling.num_outputs),)](
        x,
        weight,
        operands.or_any(bias),
        operands.or_any(scale),
        out,
        len(x),
        num_outputs,
        x.stride(0),
        out.stride(0),
        0 if scale is None else scale.stride(0),
        0 if group_size is None or scale is None else scale.stride(1),
        SPAN=tiling.span if group_size is None else min(tiling.span, group_size),
        GROUP=group_size,
        HAS_SCALE=scale is not None,
        **options,
    )


def _launch_parted(operands: _Operands, tiling: Tiling, options: dict[str, Any]) -> None:
    x, weight, bias, scale, out = operands
    size, num_outputs = weight.shape[1], out.shape[1]
    part = -(-size // (tiling.num_parts * tiling.span)) * tiling.span
    last_part = max(0, size - (tiling.num_parts - 1) * part)
    is_aligned = size % _PREFETCH_ALIGNMENT == 0
    parted_inputs_kernel[(-(-num_outputs // tiling.num_outputs),)](
        x,
        weight,
        operands.or_any(bias),
        scale,
        out,
        len(x),
        num_outputs,
        x.stride(0),
        out.stride(0),
        PADDED_OUTPUTS=power_of_2_from(tiling.num_outputs),
        SPAN=tiling.span,
        PARTS=tiling.num_parts,
        PREFETCHED=min(tiling.num_prefetched * tiling.span, last_part) if is_aligned else 0,
        **options,
    )

"""The product of quantized rows with a quantized weight matrix on tensor cores: int8 with a scale per row and a scale
per output, or FP8 with a scale per row and group of inputs and a scale per output and group.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from seesay.kernels.gpu import has_dependent_launch, has_large_shared_memory, nvidia_options
from seesay.kernels.sizes import power_of_2_from

_BAND = 8
"""Tiles of rows whose programs follow one another, so that they find each other's weights in the L2 cache."""
_MANY_TILES = 264
"""Large tiles that keep a GPU with 132 multiprocessors busy; fewer leave some of them idle at the end."""


class Tiling(NamedTuple):
    """A program computes `num_rows` · `num_outputs` elements of the result, from `span` inputs at a time."""

    num_rows: int
    num_outputs: int
    span: int
    num_warps: int
    num_stages: int


@triton.jit
def scaled_matmul_kernel(
    x_ptr,
    x_scale_ptr,
    weight_ptr,
    scale_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    num_outputs,
    scale_stride,
    group_stride,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SPAN: tl.constexpr,
    GROUP: tl.constexpr,
    BAND: tl.constexpr,
    STAGES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Compute out [num_rows, num_outputs] from x [num_rows, SIZE] and W [num_outputs, SIZE].

    GROUP: None for int8, whose sums are exact, with scales x_scale [num_rows] and scale [num_outputs]. Or the number of
    inputs, a multiple of SPAN, that share the scales x_scale [num_rows, groups] and scale [num_outputs, groups].
    """
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    num_row_tiles, num_output_tiles = tl.cdiv(num_rows, ROWS), tl.cdiv(num_outputs, OUTPUTS)
    program = tl.program_id(0)
    first_tile = program // (BAND * num_output_tiles) * BAND
    band = tl.minimum(num_row_tiles - first_tile, BAND)
    place = program % (BAND * num_output_tiles)
    rows = (first_tile + place % band) * ROWS + tl.arange(0, ROWS)
    outputs = place // band * OUTPUTS + tl.arange(0, OUTPUTS)
    is_row, is_output = rows < num_rows, outputs < num_outputs
    columns = tl.arange(0, SPAN)
    x_places = x_ptr + rows.to(tl.int64)[:, None] * SIZE + columns[None, :]
    weight_places = weight_ptr + outputs.to(tl.int64)[None, :] * SIZE + columns[:, None]
    num_groups: tl.constexpr = 1 if GROUP is None else (SIZE + GROUP - 1) // GROUP
    x_scales = x_scale_ptr + rows.to(tl.int64) * num_groups
    scales = scale_ptr + outputs.to(tl.int64) * scale_stride
    if GROUP is None:
        sums = tl.zeros([ROWS, OUTPUTS], tl.int32)
        for first in tl.range(0, SIZE, SPAN, num_stages=STAGES):
            x = _load(x_places + first, is_row[:, None], (first + columns < SIZE)[None, :], SIZE, SPAN)
            weight = _load(weight_places + first, is_output[None, :], (first + columns < SIZE)[:, None], SIZE, SPAN)
            sums = tl.dot(x, weight, sums, out_dtype=tl.int32)
        total = sums.to(tl.float32) * tl.load(x_scales, mask=is_row, other=0.0)[:, None]
        total = total * tl.load(scales, mask=is_output, other=0.0)[None, :]
    else:
        total = tl.zeros([ROWS, OUTPUTS], tl.float32)
        for first in tl.range(0, SIZE, SPAN, num_stages=STAGES):
            x = _load(x_places + first, is_row[:, None], (first + columns < SIZE)[None, :], SIZE, SPAN)
            weight = _load(weight_places + first, is_output[None, :], (first + columns < SIZE)[:, None], SIZE, SPAN)
            group = first // GROUP
            x_scale = tl.load(x_scales + group, mask=is_row, other=0.0)
            scale = tl.load(scales + group * group_stride, mask=is_output, other=0.0)
            total += tl.dot(x, weight) * x_scale[:, None] * scale[None, :]
    if HAS_BIAS:
        total += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    targets = out_ptr + rows.to(tl.int64)[:, None] * num_outputs + outputs[None, :]
    tl.store(targets, total.to(out_ptr.dtype.element_ty), mask=is_row[:, None] & is_output[None, :])


@triton.jit
def _load(places, is_inside, is_element, SIZE: tl.constexpr, SPAN: tl.constexpr):
    """Load a tile, zero outside of the matrix."""
    if SIZE % SPAN != 0:
        is_inside = is_inside & is_element
    return tl.load(places, mask=is_inside, other=0.0)


def tile(shape: tuple[int, int, int], group_size: int | None, has_large_memory: bool) -> Tiling:
    """Return the tiling for (rows, outputs, inputs), as measured on an H200 with the sizes of a 7B backbone."""
    num_rows, num_outputs, size = shape
    num_large_tiles = -(-num_rows // 128) * -(-num_outputs // 256)
    if num_rows <= 16:
        tiling = Tiling(num_rows=16, num_outputs=64, span=256, num_warps=4, num_stages=4)
    elif num_rows <= 64:
        tiling = Tiling(
            num_rows=max(32, power_of_2_from(num_rows)), num_outputs=64, span=128, num_warps=4, num_stages=5
        )
    elif group_size is None and num_large_tiles >= _MANY_TILES and has_large_memory:
        tiling = Tiling(num_rows=128, num_outputs=256, span=128, num_warps=8, num_stages=3)
    else:
        tiling = Tiling(num_rows=64, num_outputs=128, span=128, num_warps=4, num_stages=4)
    if not has_large_memory:
        tiling = tiling._replace(span=min(tiling.span, 128), num_stages=3)
    span = min(tiling.span, group_size or tiling.span)
    return tiling._replace(span=max(32, min(span, power_of_2_from(size))))


def multiply_scaled(
    rows: tuple[torch.Tensor, torch.Tensor],
    bias: torch.Tensor | None,
    *,
    weight: torch.Tensor,
    scale: torch.Tensor,
    dtype: torch.dtype,
    group_size: int | None = None,
    tiling: Tiling | None = None,
) -> torch.Tensor:
    """Return rows [N, in] times weight [out, in], plus the bias, [N, out] in `dtype`.

    rows: numbers and scales, as `seesay.kernels.quantize` makes them. scale float32 [out]; with a group size [out,
    groups]. tiling: by default one that fits the sizes.
    """
    x, x_scale = rows
    (num_rows, size), num_outputs = x.shape, len(weight)
    assert x.is_contiguous() and x_scale.is_contiguous() and weight.is_contiguous() and weight.shape[1] == size
    assert (scale.dim() == 2) == (group_size is not None) and x.dtype == weight.dtype
    out = torch.empty(num_rows, num_outputs, dtype=dtype, device=x.device)
    if not num_rows:
        return out
    index = x.get_device()
    is_dependent = has_dependent_launch(index)
    if tiling is None:
        tiling = tile((num_rows, num_outputs, size), group_size, has_large_shared_memory(index))
    num_tiles = -(-num_rows // tiling.num_rows) * -(-num_outputs // tiling.num_outputs)
    scaled_matmul_kernel[(num_tiles,)](
        x,
        x_scale,
        weight,
        scale,
        x if bias is None else bias,
        out,
        num_rows,
        num_outputs,
        scale.stride(0),
        0 if group_size is None else scale.stride(1),
        SIZE=size,
        ROWS=tiling.num_rows,
        OUTPUTS=tiling.num_outputs,
        SPAN=tiling.span,
        GROUP=group_size,
        BAND=_BAND,
        STAGES=tiling.num_stages,
        HAS_BIAS=bias is not None,
        IS_DEPENDENT=is_dependent,
        num_warps=tiling.num_warps,
        **nvidia_options(launch_pdl=is_dependent),
    )
    return out

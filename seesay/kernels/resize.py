"""Antialiased resizing of uint8 frames on a GPU, bit-identical to torch's `interpolate` on a CPU or to Pillow's
`Image.resize`, and cutting of the result into patch vectors.

The CPU algorithm (aten/src/ATen/native/cpu/UpSampleKernel.cpp, after Pillow) uses 16-bit integer weights of one
precision, resizes columns before rows, and rounds to 8 bits in between. Pillow's weights are 32-bit integers, of the
same precision for all sizes. `interpolate` on CUDA computes in float32.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import triton
import triton.language as tl

from seesay.values.frame_chain import CHANNELS, Patches, Resample

if TYPE_CHECKING:
    from torch import Tensor

PILLOW_PRECISION = 22
"""Bits of Pillow's weights behind the point."""
COLUMN_BLOCK, ROW_BLOCK = 128, 4
"""Columns and rows of pixels per program in the first pass."""
SPAN = 1024
"""Values per program in the second pass."""


# --- weights ---------------------------------------------------------------------------------------------------------


class Taps(NamedTuple):
    """The filter of one axis: output o is (half + Σ weights[t, o] · pixel[starts[o] + t]) >> precision, clamped to 8
    bits, with half = (1 << precision) / 2. `starts` is int32 [out]. `weights` is int16 [taps, out], or int32 if they
    have Pillow's precision, zero beyond the end of the input."""

    starts: Any
    weights: Any
    precision: int

    @property
    def half(self) -> int:
        return (1 << self.precision) >> 1


def _weigh_linear(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.maximum(1.0 - np.abs(x), 0.0)


def _weigh_cubic(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the weights of Keys' cubic filter with a = -1/2."""
    a, x = -0.5, np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _weigh_lanczos(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the weights of a sinc in a window of three lobes."""
    return np.where(np.abs(x) < 3, _sinc(x) * _sinc(x / 3), 0.0)


def _sinc(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    angles = np.where(x == 0, 1.0, x * math.pi)
    return np.where(x == 0, 1.0, np.sin(angles) / angles)


_FILTERS = {"bilinear": (1.0, _weigh_linear), "bicubic": (2.0, _weigh_cubic), "lanczos": (3.0, _weigh_lanczos)}
"""Radius in pixels, and weight by distance."""


@lru_cache(maxsize=512)
def make_taps(size: int, new_size: int, kind: Resample, precision: int | None = None) -> Taps:
    """Return the filter that resizes an axis from `size` to `new_size`, as read-only NumPy arrays: torch's, or one of
    the given precision. An axis that keeps its size is copied."""
    if size == new_size:
        return Taps(np.arange(size, dtype=np.int32), np.ones((1, size), dtype=np.int16), 0)
    reach, weigh = _FILTERS[kind]
    scale = size / new_size
    stretch = max(scale, 1.0)
    support = reach * stretch
    num_taps = math.ceil(support) * 2 + 1
    centers = scale * (np.arange(new_size) + 0.5)
    starts = np.maximum((centers - support + 0.5).astype(np.int64), 0)
    counts = np.minimum((centers + support + 0.5).astype(np.int64), size) - starts
    counts = np.clip(counts, 0, num_taps)
    taps = np.arange(num_taps)[:, None]
    weights = np.where(taps < counts, weigh((taps + starts - centers + 0.5) * (1.0 / stretch)), 0.0)
    # Add one by one, as the CPU kernel does: NumPy's sum rounds differently.
    weights /= np.cumsum(weights, axis=0)[-1]
    width: type[np.signedinteger[Any]] = np.int32
    if precision is None:
        width, precision = np.int16, 0
        while precision < 22 and int(0.5 + weights.max() * (1 << (precision + 1))) < 1 << 15:
            precision += 1
    scaled = weights * (1 << precision)
    rounded = np.trunc(scaled + np.copysign(0.5, scaled)).astype(width)
    return Taps(starts.astype(np.int32), np.ascontiguousarray(rounded[: counts.max()]), precision)


# --- kernels ---------------------------------------------------------------------------------------------------------


@triton.jit
def _to_8_bits(total, precision):
    return tl.minimum(tl.maximum(total >> precision, 0), 255)


# Sizes are not specialized: Triton would recompile the kernels for each class of integers.
@triton.jit(do_not_specialize=["num_rows", "width", "new_width", "plane_size", "num_taps", "half", "precision"])
def columns_kernel(
    frames_ptr,
    starts_ptr,
    weights_ptr,
    out_ptr,
    num_rows,
    width,
    new_width,
    plane_size,
    num_taps,
    half,
    precision,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (r, b) computes columns b · BLOCK … of rows r · ROWS …, from [num_rows, width, 3] to
    [3, num_rows, new_width]."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_column = columns < new_width
    mask = (rows < num_rows)[:, None] & is_column[None, :]
    starts = tl.load(starts_ptr + columns, mask=is_column, other=0)
    red = tl.full((ROWS, BLOCK), 0, tl.int32) + half
    green = red
    blue = red
    for tap in range(num_taps):
        weight = tl.load(weights_ptr + tap * new_width + columns, mask=is_column, other=0).to(tl.int32)[None, :]
        source = tl.minimum(starts + tap, width - 1)
        pixels = frames_ptr + (rows[:, None] * width + source[None, :]) * 3
        red += weight * tl.load(pixels, mask=mask, other=0).to(tl.int32)
        green += weight * tl.load(pixels + 1, mask=mask, other=0).to(tl.int32)
        blue += weight * tl.load(pixels + 2, mask=mask, other=0).to(tl.int32)
    out = out_ptr + rows[:, None] * new_width + columns[None, :]
    tl.store(out, _to_8_bits(red, precision).to(tl.uint8), mask=mask)
    tl.store(out + plane_size, _to_8_bits(green, precision).to(tl.uint8), mask=mask)
    tl.store(out + plane_size + plane_size, _to_8_bits(blue, precision).to(tl.uint8), mask=mask)


@triton.jit(
    do_not_specialize=[
        *("frame_stride", "row_stride", "column_stride", "channel_stride", "num_frames", "height", "new_height"),
        *("groups_high", "groups_wide", "num_values", "num_taps", "half", "precision"),
    ],
)
def patches_kernel(
    pixels_ptr,
    starts_ptr,
    weights_ptr,
    table_ptr,
    out_ptr,
    frame_stride,
    row_stride,
    column_stride,
    channel_stride,
    num_frames,
    height,
    new_height,
    groups_high,
    groups_wide,
    num_values,
    num_taps,
    half,
    precision,
    PATCH_H: tl.constexpr,
    PATCH_W: tl.constexpr,
    GROUP_H: tl.constexpr,
    GROUP_W: tl.constexpr,
    FRAMES: tl.constexpr,
    COPIES: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Program i computes values i · SPAN … of the vectors, and writes each one for COPIES equal frames of a patch."""
    AREA: tl.constexpr = PATCH_H * PATCH_W
    VALUES: tl.constexpr = 3 * FRAMES * AREA
    first = tl.program_id(0).to(tl.int64) * SPAN
    first_patch = first // VALUES
    places = (first - first_patch * VALUES).to(tl.int32) + tl.arange(0, SPAN)
    mask = first + tl.arange(0, SPAN) < num_values
    patch = first_patch.to(tl.int32) + places // VALUES
    place = places % VALUES
    channel = place // (FRAMES * AREA)
    frame_in_patch = place // AREA % FRAMES
    y = place // PATCH_W % PATCH_H
    x = place % PATCH_W

    group = patch // (GROUP_H * GROUP_W)
    in_group = patch % (GROUP_H * GROUP_W)
    line = group // groups_wide
    row = (line % groups_high * GROUP_H + in_group // GROUP_W) * PATCH_H + y
    column = (group % groups_wide * GROUP_W + in_group % GROUP_W) * PATCH_W + x
    frame = tl.minimum(line // groups_high * FRAMES + frame_in_patch, num_frames - 1)

    pixels = pixels_ptr + frame.to(tl.int64) * frame_stride + channel.to(tl.int64) * channel_stride
    pixels += column * column_stride
    start = tl.load(starts_ptr + row, mask=mask, other=0)
    total = tl.full((SPAN,), 0, tl.int32) + half
    for tap in range(num_taps):
        weight = tl.load(weights_ptr + tap * new_height + row, mask=mask, other=0).to(tl.int32)
        source = tl.minimum(start + tap, height - 1).to(tl.int64)
        total += weight * tl.load(pixels + source * row_stride, mask=mask, other=0).to(tl.int32)
    value = tl.load(table_ptr + channel * 256 + _to_8_bits(total, precision), mask=mask)
    out = out_ptr + patch.to(tl.int64) * (VALUES * COPIES)
    out += (channel * (FRAMES * COPIES) + frame_in_patch) * AREA + place % AREA
    for copy in tl.static_range(COPIES):
        tl.store(out + copy * AREA, value, mask=mask)


# --- calls -----------------------------------------------------------------------------------------------------------


def resize_columns(frames: Tensor, taps: Taps) -> Tensor:
    """Resize the width of contiguous frames uint8 [N, H, W, 3]. Returns [N, H, new W, 3], a view of memory
    [3, N, H, new W]."""
    count, height, width, _ = frames.shape
    new_width = len(taps.starts)
    out = frames.new_empty(CHANNELS, count, height, new_width)
    grid = (triton.cdiv(count * height, ROW_BLOCK), triton.cdiv(new_width, COLUMN_BLOCK))
    columns_kernel[grid](
        frames,
        taps.starts,
        taps.weights,
        out,
        count * height,
        width,
        new_width,
        count * height * new_width,
        len(taps.weights),
        taps.half,
        taps.precision,
        ROWS=ROW_BLOCK,
        BLOCK=COLUMN_BLOCK,
        num_warps=4,
    )
    return out.permute(1, 2, 3, 0)


_PIXEL = Patches((1, 1), (1, 1), 1)


def resize_rows(frames: Tensor, taps: Taps, levels: Tensor) -> Tensor:
    """Resize the height of frames uint8 [N, H, W, 3], which may lie in memory in any way: [N, new H, W, 3], contiguous.
    `levels` is uint8 [3, 256], the numbers 0 … 255."""
    count, _, width, channels = frames.shape
    out = frames.new_empty(count * len(taps.starts) * width, channels)
    cut_patches(frames, taps, levels, _PIXEL, out)
    return out.view(count, -1, width, channels)


def cut_patches(frames: Tensor, taps: Taps, table: Tensor, layout: Patches, out: Tensor) -> None:
    """Resize the height of frames uint8 [N, H, W, 3], which may lie in memory in any way, cut them into patch vectors
    of the layout, and write table[channel, value] for each value into `out` [patches, layout.vector_size].

    `table` [3, 256] has the dtype of `out`.
    """
    count, height, width, _ = frames.shape
    new_height = len(taps.starts)
    rows, columns = layout.count_groups((new_height, width))
    distinct = 1 if count == 1 else layout.num_frames
    num_values = out.numel() * distinct // layout.num_frames
    assert out.shape == (layout.count(count, (new_height, width)), layout.vector_size), (out.shape, layout)
    assert out.is_contiguous() and table.is_contiguous() and table.dtype == out.dtype
    patches_kernel[(triton.cdiv(num_values, SPAN),)](
        frames,
        taps.starts,
        taps.weights,
        table,
        out,
        *frames.stride(),
        count,
        height,
        new_height,
        rows,
        columns,
        num_values,
        len(taps.weights),
        taps.half,
        taps.precision,
        PATCH_H=layout.size[0],
        PATCH_W=layout.size[1],
        GROUP_H=layout.group[0],
        GROUP_W=layout.group[1],
        FRAMES=distinct,
        COPIES=layout.num_frames // distinct,
        SPAN=SPAN,
        num_warps=4,
    )

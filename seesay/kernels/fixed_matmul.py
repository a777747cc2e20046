"""The product of rows with a weight matrix whose result for a row has the same bits for any number of rows, and at any
place among them: for the deterministic mode.

No sum over the inputs is divided among programs or warps. With 16-bit types on Hopper, outputs are the first axis of
the tensor cores' tiles and rows the second one, so that every tiling is computed by the same instruction,
`wgmma.mma_async` of 64 outputs and 16 inputs, which differs in the number of rows alone: one accumulator per result
gets the same 16 products at a time, from the first inputs to the last. On Ampere that is `mma` of 16 · 8 · 16 for all
tilings, and float32 is summed one product at a time. `engine/core/loading/deterministic.py` tries at the start whether
all this holds on the GPU that is there.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from seesay.kernels.few_rows.few_row_kernels import prefetch, widen
from seesay.kernels.few_rows.few_row_tilings import NUM_MULTIPROCESSORS
from seesay.kernels.gpu import has_dependent_launch, has_large_shared_memory, nvidia_options
from seesay.kernels.sizes import power_of_2_from

NVIDIA_ALONE = True
"""The kernel prefetches by PTX."""
MOST_SHARED_BYTES = 160 * 1024
LESS_SHARED_BYTES = 96 * 1024
"""Of a program; the second one on GPUs with less shared memory."""
MOST_PREFETCH_ROWS = 64
"""With more rows, products are bound by arithmetic."""
_LEAST_ROWS = 16
"""Of a tile: for 8, Triton takes `mma.sync` on Hopper, too, whose sums of 16 products have other bits."""
GROUP = 8
"""Tiles of outputs that take turns over all rows before the next ones: their weights stay in the cache."""


class Tiling(NamedTuple):
    """A program computes `num_outputs` outputs, in a tile of `padded` ones, of `rows` rows, from `span` inputs at a
    time."""

    num_outputs: int
    padded: int
    rows: int
    span: int
    num_warps: int
    num_stages: int


@triton.jit(do_not_specialize=["num_rows"])
def fixed_product_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    scale_ptr,
    out_ptr,
    num_rows,
    num_outputs,
    x_stride,
    out_stride,
    SIZE: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PADDED_OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    SPAN: tl.constexpr,
    STAGES: tl.constexpr,
    GROUP: tl.constexpr,
    PREFETCHED: tl.constexpr,
    ADDS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
    IS_COMPILED: tl.constexpr,
):
    """Program i computes a tile of out [num_rows, num_outputs] = x [num_rows, SIZE] · W [num_outputs, SIZE]ᵀ.

    bias [num_outputs], and scale float32 [num_outputs] of a W in numbers of one byte, are optional. ADDS: add the
    rounded product to out. PREFETCHED: the bytes of each row of W that are brought into the cache before x is known.
    """
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
    num_row_tiles = (num_rows + ROWS - 1) // ROWS
    num_output_tiles = (num_outputs + OUTPUTS - 1) // OUTPUTS
    width = GROUP * num_row_tiles
    first_tile = tl.program_id(0) // width * GROUP
    group = tl.minimum(num_output_tiles - first_tile, GROUP)
    output_tile = first_tile + tl.program_id(0) % width % group
    row_tile = tl.program_id(0) % width // group
    members = tl.arange(0, PADDED_OUTPUTS)
    outputs = output_tile * OUTPUTS + members
    rows = row_tile * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, SPAN)
    is_output, is_row = (members < OUTPUTS) & (outputs < num_outputs), rows < num_rows
    own = weight_ptr + outputs.to(tl.int64)[:, None] * SIZE + columns[None, :]
    inputs = x_ptr + rows.to(tl.int64)[None, :] * x_stride + columns[:, None]
    total = tl.zeros([PADDED_OUTPUTS, ROWS], tl.float32)
    if IS_DEPENDENT:
        if PREFETCHED > 0:
            last = tl.minimum(output_tile * OUTPUTS + OUTPUTS, num_outputs) - 1
            prefetch(weight_ptr + tl.minimum(outputs, last).to(tl.int64) * SIZE, PREFETCHED)
        tl.extra.cuda.gdc_wait()
    for first in tl.range(0, SIZE, SPAN, num_stages=STAGES):
        is_x, is_weight = is_row[None, :], is_output[:, None]
        if SIZE % SPAN != 0:
            is_x = is_x & (first + columns < SIZE)[:, None]
            is_weight = is_weight & (first + columns < SIZE)[None, :]
        x = tl.load(inputs + first, mask=is_x, other=0.0)
        weight = tl.load(own + first, mask=is_weight, other=0.0)
        if scale_ptr is not None:
            weight = widen(weight, x.dtype, IS_COMPILED)
        total = tl.dot(weight, x, total, input_precision="ieee")
    if scale_ptr is not None:
        total *= tl.load(scale_ptr + outputs, mask=is_output, other=0.0)[:, None]
    if bias_ptr is not None:
        total += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[:, None]
    kind = out_ptr.dtype.element_ty
    product = total.to(kind)
    places = out_ptr + rows.to(tl.int64)[None, :] * out_stride + outputs[:, None]
    is_inside = is_output[:, None] & is_row[None, :]
    if ADDS:
        before = tl.load(places, mask=is_inside, other=0.0).to(tl.float32)
        product = (product.to(tl.float32) + before).to(kind)
    tl.store(places, product, mask=is_inside)


def multiply(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    scale: torch.Tensor | None = None,
    tiling: Tiling | None = None,
) -> torch.Tensor:
    """Return x Wᵀ + b [..., out] for x [..., in] and weight [out, in]. scale: float32 [out], for a weight in numbers of
    one byte. tiling: by default one that fits the sizes."""
    rows = x.reshape(-1, x.shape[-1])
    out = x.new_empty(len(rows), len(weight))
    _launch(rows, weight, bias, scale, out, adds=False, tiling=tiling)
    return out.view(*x.shape[:-1], len(weight))


def add_product(
    target: torch.Tensor, x: torch.Tensor, *, weight: torch.Tensor, scale: torch.Tensor | None = None
) -> None:
    """Add x Wᵀ to target [N, out] in place, for x [N, in]: rounded first, as `multiply` rounds it."""
    _launch(x, weight, None, scale, target, adds=True)


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scale: torch.Tensor | None,
    out: torch.Tensor,
    *,
    adds: bool,
    tiling: Tiling | None = None,
) -> None:
    num_outputs, size = weight.shape
    num_rows, index = len(x), x.get_device()
    if not num_rows:
        return
    x = x if x.stride(1) == 1 else x.contiguous()
    assert x.shape[1] == size and weight.is_contiguous() and out.stride(1) == 1
    if tiling is None:
        tiling = pick_tiling(num_rows, num_outputs, size, x.itemsize, has_large_shared_memory(index))
    is_dependent = has_dependent_launch(index)
    is_prefetched = tiling.rows <= MOST_PREFETCH_ROWS and size * weight.itemsize % 16 == 0
    num_programs = -(-num_outputs // tiling.num_outputs) * -(-num_rows // tiling.rows)
    fixed_product_kernel[(num_programs,)](
        x,
        weight,
        bias,
        scale,
        out,
        num_rows,
        num_outputs,
        x.stride(0),
        out.stride(0),
        SIZE=size,
        OUTPUTS=tiling.num_outputs,
        PADDED_OUTPUTS=tiling.padded,
        ROWS=tiling.rows,
        SPAN=tiling.span,
        STAGES=tiling.num_stages,
        GROUP=GROUP,
        PREFETCHED=min(2 * tiling.span, size) * weight.itemsize // 16 * 16 if is_prefetched else 0,
        ADDS=adds,
        IS_DEPENDENT=is_dependent,
        IS_COMPILED=index >= 0,
        num_warps=tiling.num_warps,
        **nvidia_options(launch_pdl=is_dependent),
    )


@cache
def pick_tiling(num_rows: int, num_outputs: int, size: int, itemsize: int, has_room: bool) -> Tiling:
    """Return the tiling for these sizes. itemsize: bytes of a number of x. has_room: whether shared memory is large."""
    if itemsize == 4:
        return Tiling(32, 32, 16 if num_rows <= 16 else 32, 32, 4, 1)
    if num_rows <= MOST_PREFETCH_ROWS:
        rows = max(_LEAST_ROWS, power_of_2_from(num_rows))
        span = max(16, min(128, power_of_2_from(size)))
        return _with_stages(Tiling(_spread(num_outputs), 64, rows, span, 4, 0), has_room)
    sizes = ((64, 64), (64, 128), (128, 128), (128, 256)) if has_room else ((64, 64), (64, 128), (128, 128))
    outputs, rows = min(sizes, key=lambda tile: _guess_time(num_rows, num_outputs, *tile))
    span = max(16, min(64, power_of_2_from(size)))
    return _with_stages(Tiling(outputs, outputs, rows, span, 8 if outputs == 128 else 4, 0), has_room)


def _with_stages(tiling: Tiling, has_room: bool) -> Tiling:
    stage_bytes = 2 * tiling.span * (tiling.padded + tiling.rows)
    shared_bytes = MOST_SHARED_BYTES if has_room else LESS_SHARED_BYTES
    most = 6 if tiling.rows <= MOST_PREFETCH_ROWS else 4
    return tiling._replace(num_stages=max(2, min(most, shared_bytes // stage_bytes)))


def _spread(num_outputs: int) -> int:
    """Return the outputs of a program, at most 64, with which no multiprocessor has much more to read than others."""

    def count_most(outputs: int) -> int:
        num_programs = -(-num_outputs // outputs)
        return -(-num_programs // NUM_MULTIPROCESSORS) * outputs

    least = min(map(count_most, range(16, 65)))
    return next(outputs for outputs in range(64, 15, -1) if count_most(outputs) <= 1.02 * least)


def _guess_time(num_rows: int, num_outputs: int, outputs: int, rows: int) -> float:
    """Return a time in units of no meaning: turns of the multiprocessors times cycles per input, which are those of
    tensor cores, or of the cache at 32 bytes per cycle."""
    num_programs = -(-num_outputs // outputs) * -(-num_rows // rows)
    turns = -(-num_programs // NUM_MULTIPROCESSORS)
    return turns * max(outputs * rows / 2048, (outputs + rows) * 2 / 32)

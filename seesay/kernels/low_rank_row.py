"""Triton kernels of the product of low rank, B A x, of one row, for the product that it is added to (see
`few_row_kernels.one_row_kernel`). Sums are in float32, and A x is rounded as a matrix product of its own would be.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seesay.kernels.dependent_launch import wait
from seesay.kernels.gpu import has_dependent_launch, nvidia_options
from seesay.kernels.low_rank import MULTIPLE, SlotProducts, load_b, load_span
from seesay.kernels.sizes import power_of_2_from

NVIDIA_ALONE = True
"""Only the product of one row takes these, which is made for NVIDIA's GPUs."""
_ROW_PART, _ROW_COLUMNS = 512, 64
"""Inputs, and outputs, that a program of one row's kernels multiplies."""
_WARPS = 2


@triton.jit(do_not_specialize_on_alignment=["ranks_ptr"])
def shrink_row_kernel(
    x_ptr,
    norm_ptr,
    a_ptr,
    ranks_ptr,
    tiles_ptr,
    made_ptr,
    slot_stride,
    ranks_stride,
    eps,
    SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    SOURCES: tl.constexpr,
    MAX_RANK: tl.constexpr,
    RANKS: tl.constexpr,
    INPUTS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Make RANKS components of A x of one row from INPUTS inputs: [parts, SOURCES · MAX_RANK]. HAS_NORM: of its RMS
    norm, as `one_row_kernel` computes it. The kernel starts while the one before runs, and reads its factors."""
    index, number = tl.program_id(0), tl.program_id(1)
    slot = tl.load(tiles_ptr).to(tl.int64)
    RANK_TILES: tl.constexpr = (MAX_RANK + RANKS - 1) // RANKS
    source = index // RANK_TILES
    components = (index % RANK_TILES) * RANKS + tl.arange(0, RANKS)
    rank = tl.load(ranks_ptr + slot * ranks_stride + source, mask=slot >= 0, other=0)
    inputs = number * INPUTS + tl.arange(0, INPUTS)
    is_input = inputs < SIZE
    own = a_ptr + slot * slot_stride + (source * MAX_RANK + components)[:, None].to(tl.int64) * SIZE
    a = tl.load(own + inputs[None, :], mask=(components < rank)[:, None] & is_input[None, :], other=0.0)
    wait(IS_DEPENDENT)
    x = tl.load(x_ptr + inputs, mask=is_input, other=0.0)
    if HAS_NORM:
        everywhere = tl.arange(0, PADDED_SIZE)
        whole = tl.load(x_ptr + everywhere, mask=everywhere < SIZE, other=0.0).to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(whole * whole, axis=0) / SIZE + eps)
        weight = tl.load(norm_ptr + inputs, mask=is_input, other=0.0).to(tl.float32)
        x = (x.to(tl.float32) * scale * weight).to(x.dtype)
    made = tl.sum(a.to(tl.float32) * x.to(tl.float32)[None, :], axis=1)
    places = made_ptr + (number * SOURCES + source) * MAX_RANK + components
    tl.store(places, made, mask=components < MAX_RANK)


@triton.jit(do_not_specialize_on_alignment=["ranks_ptr"])
def expand_row_kernel(
    made_ptr,
    b_ptr,
    ranks_ptr,
    tiles_ptr,
    spans_ptr,
    out_ptr,
    num_outputs,
    slot_stride,
    ranks_stride,
    MADE: tl.constexpr,
    MAX_RANK: tl.constexpr,
    RANKS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    PADDED_PARTS: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Write COLUMNS of a span of B A x of one row to out float32 [num_outputs], for A x [PARTS, MADE]. The kernel
    starts while the one before runs, and reads its first factors; the one behind starts when A x is made, and so x."""
    slot = tl.load(tiles_ptr).to(tl.int64)
    source, start, stop = load_span(spans_ptr, tl.program_id(0), IS_ALIGNED)
    columns = start + tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    is_column = columns < stop
    rank = tl.load(ranks_ptr + slot * ranks_stride + source, mask=slot >= 0, other=0)
    own = b_ptr + slot * slot_stride + columns
    b = load_b(own, 0, rank, is_column, num_outputs, RANKS)
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    parts = tl.arange(0, PADDED_PARTS)[:, None]
    total = tl.zeros((COLUMNS,), dtype=tl.float32)
    for start in range(0, rank, RANKS):
        if start > 0:
            b = load_b(own, start, rank, is_column, num_outputs, RANKS)
        components = start + tl.arange(0, RANKS)[None, :]
        places = made_ptr + parts * MADE + source * MAX_RANK + components
        inner = tl.sum(tl.load(places, mask=(parts < PARTS) & (components < rank), other=0.0), axis=0)
        total += tl.sum(inner.to(b.dtype).to(tl.float32)[:, None] * b.to(tl.float32), axis=0)
    tl.store(out_ptr + columns, total[None, :], mask=is_column)


def multiply_row(x: torch.Tensor, products: SlotProducts, norm: tuple[torch.Tensor, float] | None) -> torch.Tensor:
    """Return B A x, float32 [out], for x [1, in], or for its RMS norm (weight [in], eps)."""
    products.check(x)
    size, is_dependent = x.shape[1], has_dependent_launch(x.get_device())
    num_parts, num_made, max_rank = -(-size // _ROW_PART), products.num_sources * products.max_rank, products.max_rank
    made = torch.empty(num_parts, num_made, dtype=torch.float32, device=x.device)
    out = torch.empty(products.b.shape[2], dtype=torch.float32, device=x.device)
    options = {
        "MAX_RANK": max_rank,
        "RANKS": MULTIPLE,
        "IS_DEPENDENT": is_dependent,
        "num_warps": _WARPS,
        **nvidia_options(launch_pdl=is_dependent),
    }
    shrink_row_kernel[(num_made // MULTIPLE, num_parts)](
        x,
        x if norm is None else norm[0],
        products.a,
        products.ranks,
        products.tiles,
        made,
        products.a.stride(0),
        products.ranks.stride(0),
        0.0 if norm is None else norm[1],
        SIZE=size,
        PADDED_SIZE=power_of_2_from(size),
        SOURCES=products.num_sources,
        INPUTS=_ROW_PART,
        HAS_NORM=norm is not None,
        **options,
    )
    expand_row_kernel[(len(products.spans), products.span // _ROW_COLUMNS)](
        made,
        products.b,
        products.ranks,
        products.tiles,
        products.spans,
        out,
        len(out),
        products.b.stride(0),
        products.ranks.stride(0),
        MADE=num_made,
        COLUMNS=_ROW_COLUMNS,
        PARTS=num_parts,
        PADDED_PARTS=power_of_2_from(num_parts),
        IS_ALIGNED=products.is_aligned,
        **options,
    )
    return out

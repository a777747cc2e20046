"""Triton kernels that add products of low rank, B A x, to rows of a matrix, each row with the factors in its slot.

Rows of one slot are computed together, in tiles. The first kernel makes A x, each program from a part of the inputs;
the second one sums up the parts and adds B A x. Sums are in float32, and A x is rounded as a matrix product of its own
would be. Both read what the tiles, the rows and the ranks are from the device, so that a CUDA graph of them stays valid
while these change.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seesay.kernels.gpu import has_dependent_launch, nvidia_options
from seesay.kernels.sizes import power_of_2_from

MULTIPLE = 16
"""The least size of a tile of tensor cores: the largest rank is a multiple of it."""
_MAX_RANK_TILE = 64
_INPUT_BYTES = 256
"""Inputs of a row that are multiplied at once; of few rows twice as many."""
_MIN_PART, _MAX_PARTS = 512, 16
_MAX_WAITING_TILES = 8
"""Most tiles for whose kernels it is worth starting before the kernel before has ended."""
_WANTED_PROGRAMS = 512
"""Programs of the first kernel worth having at once: where there are few tiles, the inputs are divided."""


@triton.jit
def _wait(IS_DEPENDENT: tl.constexpr):
    """Wait for the kernel before. All programs do, so that none of the next kernel begins before that one has ended."""
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit(do_not_specialize=["part_stride", "ranks_stride", "part"])
def shrink_kernel(
    x_ptr,
    a_ptr,
    ranks_ptr,
    tokens_ptr,
    tiles_ptr,
    made_ptr,
    num_inputs,
    x_stride,
    slot_stride,
    ranks_stride,
    part_stride,
    part,
    SOURCES: tl.constexpr,
    MAX_RANK: tl.constexpr,
    RANKS: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Make RANKS components of A x for the rows of a tile, from one part of the inputs. The kernel starts while the one
    before runs, which makes x, and reads its first factors."""
    tile, index, number = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot = tl.load(tiles_ptr + tile * 3).to(tl.int64)
    first = tl.load(tiles_ptr + tile * 3 + 1)
    count = tl.load(tiles_ptr + tile * 3 + 2)
    RANK_TILES: tl.constexpr = (MAX_RANK + RANKS - 1) // RANKS
    source = index // RANK_TILES
    start = (index % RANK_TILES) * RANKS
    rank = 0
    if count > 0:
        rank = tl.load(ranks_ptr + slot * ranks_stride + source)
    if rank > start:
        rows = tl.arange(0, ROWS)
        is_row = rows < count
        tokens = tl.load(tokens_ptr + first + rows, mask=is_row, other=0).to(tl.int64)
        components = start + tl.arange(0, RANKS)
        is_used = components < rank
        own = a_ptr + slot * slot_stride + (source * MAX_RANK + components)[:, None].to(tl.int64) * num_inputs
        begin = number * part
        stop = tl.minimum(begin + part, num_inputs)
        inputs = begin + tl.arange(0, INPUTS)
        a = tl.load(own + inputs[None, :], mask=is_used[:, None] & (inputs < stop)[None, :], other=0.0)
        _wait(IS_DEPENDENT)
        places = x_ptr + tokens[:, None] * x_stride
        x = tl.load(places + inputs[None, :], mask=is_row[:, None] & (inputs < stop)[None, :], other=0.0)
        total = tl.dot(x, tl.trans(a), tl.zeros((ROWS, RANKS), dtype=tl.float32), input_precision="ieee")
        for place in range(begin + INPUTS, stop, INPUTS):
            inputs = place + tl.arange(0, INPUTS)
            is_input = inputs < stop
            x = tl.load(places + inputs[None, :], mask=is_row[:, None] & is_input[None, :], other=0.0)
            a = tl.load(own + inputs[None, :], mask=is_used[:, None] & is_input[None, :], other=0.0)
            total = tl.dot(x, tl.trans(a), total, input_precision="ieee")
        made = made_ptr + number * part_stride + (first + rows)[:, None] * (SOURCES * MAX_RANK)
        made += (source * MAX_RANK + components)[None, :]
        tl.store(made, total, mask=is_row[:, None] & is_used[None, :])
    else:
        _wait(IS_DEPENDENT)


@triton.jit
def _add_parts(made_ptr, is_inside, part_stride, num_parts, MAX_PARTS: tl.constexpr):
    """Return the sum of all parts of a tile of A x, in their order. All of them are read at once."""
    total = tl.load(made_ptr, mask=is_inside, other=0.0)
    for number in tl.static_range(1, MAX_PARTS):
        total += tl.load(made_ptr + number * part_stride, mask=is_inside & (number < num_parts), other=0.0)
    return total


@triton.jit(do_not_specialize=["part_stride", "ranks_stride", "num_parts"])
def expand_kernel(
    made_ptr,
    b_ptr,
    ranks_ptr,
    tokens_ptr,
    tiles_ptr,
    spans_ptr,
    y_ptr,
    num_outputs,
    y_stride,
    slot_stride,
    ranks_stride,
    part_stride,
    num_parts,
    SOURCES: tl.constexpr,
    MAX_RANK: tl.constexpr,
    RANKS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    MAX_PARTS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Add B A x, which comes in `num_parts` parts, to some outputs of one source, in the rows of a tile. The kernel
    starts while the one before runs, and reads its first factors."""
    tile, index = tl.program_id(0), tl.program_id(1)
    slot = tl.load(tiles_ptr + tile * 3).to(tl.int64)
    first = tl.load(tiles_ptr + tile * 3 + 1)
    count = tl.load(tiles_ptr + tile * 3 + 2)
    source = tl.load(spans_ptr + index * 3)
    rank = 0
    if count > 0:
        rank = tl.load(ranks_ptr + slot * ranks_stride + source)
    if rank > 0:
        columns = tl.load(spans_ptr + index * 3 + 1) + tl.arange(0, COLUMNS)
        is_column = columns < tl.load(spans_ptr + index * 3 + 2)
        rows = tl.arange(0, ROWS)
        is_row = rows < count
        tokens = tl.load(tokens_ptr + first + rows, mask=is_row, other=0).to(tl.int64)
        components = tl.arange(0, RANKS)
        is_used = components < rank
        own = b_ptr + slot * slot_stride + columns[None, :]
        b = tl.load(
            own + components[:, None].to(tl.int64) * num_outputs, mask=is_used[:, None] & is_column[None, :], other=0.0
        )
        _wait(IS_DEPENDENT)
        is_inside = is_row[:, None] & is_column[None, :]
        y_ptrs = y_ptr + tokens[:, None] * y_stride + columns[None, :]
        y = tl.load(y_ptrs, mask=is_inside, other=0.0).to(tl.float32)
        made = made_ptr + (first + rows)[:, None] * (SOURCES * MAX_RANK) + (source * MAX_RANK + components)[None, :]
        is_there = is_row[:, None] & is_used[None, :]
        inner = _add_parts(made, is_there, part_stride, num_parts, MAX_PARTS)
        total = tl.dot(inner.to(b.dtype), b, tl.zeros((ROWS, COLUMNS), dtype=tl.float32), input_precision="ieee")
        for start in range(RANKS, rank, RANKS):
            is_used = start + components < rank
            is_there = is_row[:, None] & is_used[None, :]
            inner = _add_parts(made + start, is_there, part_stride, num_parts, MAX_PARTS)
            places = own + (start + components)[:, None].to(tl.int64) * num_outputs
            b = tl.load(places, mask=is_used[:, None] & is_column[None, :], other=0.0)
            total = tl.dot(inner.to(b.dtype), b, total, input_precision="ieee")
        tl.store(y_ptrs, (y + total).to(y_ptr.dtype.element_ty), mask=is_inside)
    else:
        _wait(IS_DEPENDENT)


def add_low_rank(
    y: torch.Tensor,
    x: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    ranks: torch.Tensor,
    tokens: torch.Tensor,
    tiles: torch.Tensor,
    spans: torch.Tensor,
    *,
    tile_rows: int,
    columns: int,
) -> None:
    """Add B A x to rows of y [T, out] in place, for x [T, in].

    a [slots, sources · R, in] and b [slots, R, out]: of each slot, A of each source, one below the other, and B, whose
    columns belong to one source each. ranks int32 [slots, sources]: the components that are used; 0: none. tokens int32
    [N]: the rows of y to add to; tiles int32 [M, 3]: a slot, and the first and the number of its tokens, at most
    `tile_rows`; 0: none. spans int32 [S, 3]: at most `columns` outputs of one source: the source, the first, and the
    one behind the last.
    """
    num_sources, max_rank, num_inputs = ranks.shape[1], b.shape[1], a.shape[2]
    assert a.shape[1] == num_sources * max_rank and a.stride(2) == b.stride(2) == 1 and not max_rank % MULTIPLE
    assert x.stride(1) == y.stride(1) == ranks.stride(1) == 1 and tokens.is_contiguous() and tiles.is_contiguous()
    if not len(tokens):
        return
    tile = min(_MAX_RANK_TILE, power_of_2_from(max_rank))
    inputs = _INPUT_BYTES // x.itemsize * (2 if tile_rows * tile <= MULTIPLE * MULTIPLE else 1)
    num_tiles = len(tiles) * num_sources * -(-max_rank // tile)
    num_parts = max(1, min(_WANTED_PROGRAMS // num_tiles, num_inputs // _MIN_PART, _MAX_PARTS))
    part = -(-num_inputs // (num_parts * inputs)) * inputs
    num_parts = -(-num_inputs // part)
    is_dependent = len(tiles) <= _MAX_WAITING_TILES and has_dependent_launch(x.get_device())
    dependence = {"IS_DEPENDENT": is_dependent, **nvidia_options(launch_pdl=is_dependent)}
    made = torch.empty(num_parts, len(tokens), num_sources * max_rank, dtype=torch.float32, device=x.device)
    sizes = {"SOURCES": num_sources, "MAX_RANK": max_rank, "RANKS": tile, "ROWS": tile_rows}
    shrink_kernel[(len(tiles), num_sources * -(-max_rank // tile), num_parts)](
        x,
        a,
        ranks,
        tokens,
        tiles,
        made,
        num_inputs,
        x.stride(0),
        a.stride(0),
        ranks.stride(0),
        made.stride(0),
        part,
        INPUTS=inputs,
        num_warps=4,
        **sizes,
        **dependence,
    )
    expand_kernel[(len(tiles), len(spans))](
        made,
        b,
        ranks,
        tokens,
        tiles,
        spans,
        y,
        y.shape[1],
        y.stride(0),
        b.stride(0),
        ranks.stride(0),
        made.stride(0),
        num_parts,
        COLUMNS=columns,
        MAX_PARTS=_MAX_PARTS,
        num_warps=4,
        **sizes,
        **dependence,
    )

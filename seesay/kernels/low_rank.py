"""Triton kernels that add products of low rank, B A x, to rows of a matrix, each row with the factors in its slot.

Rows of one slot are computed together, in tiles. The first kernel makes A x, each program from a part of the inputs;
the second one sums up the parts and adds B A x, and may compute the gate of a gated layer in the same pass. Sums are in
float32, and A x is rounded as a matrix product of its own would be. All read what the tiles, the rows and the ranks
are from the device, so that a CUDA graph of them stays valid while these change. Sizes of tiles were chosen by
measurement: `benchmarks/low_rank.py`.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from seesay.kernels.dependent_launch import wait
from seesay.kernels.gpu import has_dependent_launch, nvidia_options
from seesay.kernels.sizes import power_of_2_from
from seesay.kernels.token_kernels import multiply_gate

MULTIPLE = 16
"""The least size of a tile of tensor cores: the largest rank is a multiple of it."""
_MAX_RANK_TILE = 64
_EXPAND_BYTES, _GATE_BYTES, _EXPAND_STAGES = 256, 128, {2: 3, 4: 1}
"""Bytes of each row that a program of the second kernel computes at once, fewer of many tiles' gates, and how many
times as many are under way, by the bytes of an output."""
_MIN_PART, _MAX_PARTS = 512, tl.constexpr(8)
_FEW_TILES = 64
"""Most tiles for whose kernels it is worth starting before the kernel before has ended."""
_WANTED_PROGRAMS = 512
"""Programs of the first kernel worth having at once: where there are few tiles, the inputs are divided."""
_SHRINK_BYTES, _SHRINK_STAGES = 256, 4
"""Bytes of each row that a program of the first kernel multiplies at once, and how many times as many are under way."""


class SlotProducts(NamedTuple):
    """Products of low rank, and the rows that they are added to.

    a [slots, sources · R, in] and b [slots, R, out]: of each slot, A of each source, one below the other, and B, whose
    columns belong to one source each. ranks int32 [slots, sources]: the components that are used; 0: none. spans int32
    [S, 3]: at most `span` outputs of one source: the source, the first, and the one behind the last. tokens int32 [N]:
    rows of x; tiles int32 [M, 3]: a slot, -1 for none, and the first and the number of its tokens, at most `tile_rows`;
    0: none. is_aligned: whether spans begin and end at multiples of 16.
    """

    a: torch.Tensor
    b: torch.Tensor
    ranks: torch.Tensor
    spans: torch.Tensor
    tokens: torch.Tensor
    tiles: torch.Tensor
    tile_rows: int
    span: int
    is_aligned: bool

    @property
    def num_sources(self) -> int:
        return self.ranks.shape[1]

    @property
    def max_rank(self) -> int:
        return self.b.shape[1]

    def check(self, x: torch.Tensor) -> None:
        """Check that kernels can compute this for x [T, in]."""
        assert self.a.shape[1] == self.num_sources * self.max_rank and not self.max_rank % MULTIPLE
        assert x.stride(1) == self.a.stride(2) == self.b.stride(2) == self.ranks.stride(1) == 1
        assert self.tokens.is_contiguous() and self.tiles.is_contiguous()


@triton.jit
def load_span(spans_ptr, number, IS_ALIGNED: tl.constexpr):
    """Return the source of a span, its first output, and the one behind its last."""
    source = tl.load(spans_ptr + number * 3)
    start, stop = tl.load(spans_ptr + number * 3 + 1), tl.load(spans_ptr + number * 3 + 2)
    if IS_ALIGNED:
        start, stop = tl.multiple_of(start, 16), tl.multiple_of(stop, 16)
    return source, start, stop


@triton.jit
def load_b(b_ptr, start, rank, is_column, num_outputs, RANKS: tl.constexpr):
    """Return RANKS components of B from `start` on, for b_ptr [1, columns], where the first one is."""
    components = start + tl.arange(0, RANKS)[:, None]
    return tl.load(b_ptr + components * num_outputs, mask=(components < rank) & is_column, other=0.0)


@triton.jit(do_not_specialize=["part_stride", "ranks_stride", "part"], do_not_specialize_on_alignment=["ranks_ptr"])
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
    STAGES: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Make RANKS components of A x, those of all sources being numbered, for the rows of a tile, from one part of the
    inputs. Programs beside each other read factors beside each other."""
    number, index, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot = tl.load(tiles_ptr + tile * 3).to(tl.int64)
    first = tl.load(tiles_ptr + tile * 3 + 1)
    count = tl.load(tiles_ptr + tile * 3 + 2)
    components = index * RANKS + tl.arange(0, RANKS)
    is_component = (components < SOURCES * MAX_RANK) & (count > 0) & (slot >= 0)
    ranks = tl.load(ranks_ptr + slot * ranks_stride + components // MAX_RANK, mask=is_component, other=0)
    is_used = components % MAX_RANK < ranks
    rows = tl.arange(0, ROWS)
    is_row = rows < count
    tokens = tl.load(tokens_ptr + first + rows, mask=is_row, other=0).to(tl.int64)
    wait(IS_DEPENDENT)
    if tl.max(is_used.to(tl.int32)) > 0:
        own = a_ptr + slot * slot_stride + components[:, None].to(tl.int64) * num_inputs
        places = x_ptr + tokens[:, None] * x_stride
        begin = tl.multiple_of(number * part, 16)
        stop = tl.minimum(tl.multiple_of(begin + part, 16), num_inputs)
        total = tl.zeros((ROWS, RANKS), dtype=tl.float32)
        for place in tl.range(begin, stop, INPUTS, num_stages=STAGES):
            inputs = tl.multiple_of(place, 16) + tl.arange(0, INPUTS)
            is_input = inputs < stop
            x = tl.load(places + inputs[None, :], mask=is_row[:, None] & is_input[None, :], other=0.0)
            a = tl.load(own + inputs[None, :], mask=is_used[:, None] & is_input[None, :], other=0.0)
            total = tl.dot(x, tl.trans(a), total, input_precision="ieee")
        made = made_ptr + number * part_stride + (first + rows)[:, None] * (SOURCES * MAX_RANK) + components[None, :]
        tl.store(made, total, mask=is_row[:, None] & is_used[None, :])


@triton.jit
def _sum_parts(made_ptr, start, rank, is_row, part_stride, num_parts, RANKS: tl.constexpr):
    """Return RANKS components of A x from `start` on, for made_ptr [rows, 1]: where each row is in the first part. All
    parts are read at once."""
    components = start + tl.arange(0, RANKS)[None, :]
    is_there = is_row & (components < rank)
    inner = tl.load(made_ptr + components, mask=is_there, other=0.0)
    for number in tl.static_range(1, _MAX_PARTS):
        places = made_ptr + number * part_stride + components
        inner += tl.load(places, mask=is_there & (number < num_parts), other=0.0)
    return inner


@triton.jit
def _expand(
    y_ptr,
    inner,
    made_ptr,
    b_ptr,
    rank,
    is_row,
    is_column,
    num_outputs,
    part_stride,
    num_parts,
    MAX_RANK: tl.constexpr,
    RANKS: tl.constexpr,
):
    """Return y + B A x, for y_ptr [rows, columns] and RANKS components of A x. made_ptr: see `_sum_parts`;
    b_ptr [1, columns]: where the first component of B is."""
    y = tl.load(y_ptr, mask=is_row & is_column, other=0.0).to(tl.float32)
    y = tl.dot(inner, load_b(b_ptr, 0, rank, is_column, num_outputs, RANKS), y, input_precision="ieee")
    if MAX_RANK > RANKS:
        for start in tl.range(RANKS, rank, RANKS, num_stages=1):
            more = _sum_parts(made_ptr, start, rank, is_row, part_stride, num_parts, RANKS).to(inner.dtype)
            b = load_b(b_ptr, start, rank, is_column, num_outputs, RANKS)
            y = tl.dot(more, b, y, input_precision="ieee")
    return y


@triton.jit(
    do_not_specialize=["part_stride", "ranks_stride", "num_parts"], do_not_specialize_on_alignment=["ranks_ptr"]
)
def expand_kernel(
    made_ptr,
    b_ptr,
    ranks_ptr,
    tokens_ptr,
    tiles_ptr,
    spans_ptr,
    y_ptr,
    out_ptr,
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
    STAGES: tl.constexpr,
    GATE: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Add B A x, which comes in `num_parts` parts, to a span of y in the rows of a tile.

    GATE, if given: the spans are those of the first half of the outputs, and this activation of the first half times
    the second half is written to out [T, num_outputs / 2]; y stays as it is.
    """
    tile = tl.program_id(1)
    slot = tl.load(tiles_ptr + tile * 3).to(tl.int64)
    first = tl.load(tiles_ptr + tile * 3 + 1)
    count = tl.load(tiles_ptr + tile * 3 + 2)
    source, start, stop = load_span(spans_ptr, tl.program_id(0), IS_ALIGNED)
    is_adapted = (count > 0) & (slot >= 0)
    rank = tl.load(ranks_ptr + slot * ranks_stride + source, mask=is_adapted, other=0)
    if GATE is not None:
        up_source = source + SOURCES // 2
        up_rank = tl.load(ranks_ptr + slot * ranks_stride + up_source, mask=is_adapted, other=0)
    wait(IS_DEPENDENT)
    if (rank > 0) | ((GATE is not None) & (count > 0)):
        rows = tl.arange(0, ROWS)[:, None]
        is_row = rows < count
        tokens = tl.load(tokens_ptr + first + rows, mask=is_row, other=0).to(tl.int64)
        made = made_ptr + (first + rows) * (SOURCES * MAX_RANK)
        own, b = made + source * MAX_RANK, b_ptr + slot * slot_stride
        kind = y_ptr.dtype.element_ty
        inner = _sum_parts(own, 0, rank, is_row, part_stride, num_parts, RANKS).to(kind)
        half = num_outputs // 2
        if GATE is not None:
            up_own = made + up_source * MAX_RANK
            up_inner = _sum_parts(up_own, 0, up_rank, is_row, part_stride, num_parts, RANKS).to(kind)
        for place in tl.range(start, stop, COLUMNS, num_stages=STAGES):
            if IS_ALIGNED:
                place = tl.multiple_of(place, 16)
            columns = place + tl.arange(0, COLUMNS)[None, :]
            is_column = columns < stop
            places = y_ptr + tokens * y_stride + columns
            y = _expand(
                places,
                inner,
                own,
                b + columns,
                rank,
                is_row,
                is_column,
                num_outputs,
                part_stride,
                num_parts,
                MAX_RANK,
                RANKS,
            )
            if GATE is None:
                tl.store(places, y.to(kind), mask=is_row & is_column)
            else:
                up = _expand(
                    places + half,
                    up_inner,
                    up_own,
                    b + half + columns,
                    up_rank,
                    is_row,
                    is_column,
                    num_outputs,
                    part_stride,
                    num_parts,
                    MAX_RANK,
                    RANKS,
                )
                gated = multiply_gate(y.to(kind).to(tl.float32), up.to(kind).to(tl.float32), GATE)
                tl.store(out_ptr + tokens * half + columns, gated.to(kind), mask=is_row & is_column)


def _shrink(x: torch.Tensor, products: SlotProducts, *, is_dependent: bool) -> torch.Tensor:
    """Return A x of the tokens, in parts: float32 [parts, N, sources · R]."""
    products.check(x)
    num_made, num_tiles, num_inputs = products.num_sources * products.max_rank, len(products.tiles), x.shape[1]
    tile = min(_MAX_RANK_TILE, power_of_2_from(num_made))
    inputs = _SHRINK_BYTES // x.itemsize
    num_rank_tiles = -(-num_made // tile)
    num_parts = max(1, min(_WANTED_PROGRAMS // (num_tiles * num_rank_tiles), num_inputs // _MIN_PART, _MAX_PARTS.value))
    part = -(-num_inputs // (num_parts * inputs)) * inputs
    num_parts = -(-num_inputs // part)
    made = torch.empty(num_parts, len(products.tokens), num_made, dtype=torch.float32, device=x.device)
    shrink_kernel[(num_parts, num_rank_tiles, num_tiles)](
        x,
        products.a,
        products.ranks,
        products.tokens,
        products.tiles,
        made,
        num_inputs,
        x.stride(0),
        products.a.stride(0),
        products.ranks.stride(0),
        made.stride(0),
        part,
        SOURCES=products.num_sources,
        MAX_RANK=products.max_rank,
        RANKS=tile,
        ROWS=products.tile_rows,
        INPUTS=inputs,
        STAGES=_SHRINK_STAGES,
        IS_DEPENDENT=is_dependent,
        num_warps=4,
        **nvidia_options(launch_pdl=is_dependent),
    )
    return made


def _add(
    y: torch.Tensor, x: torch.Tensor, products: SlotProducts, *, gate: str | None, spans: torch.Tensor
) -> torch.Tensor:
    """Add B A x to the spans of y in place, or return the gate of the sum."""
    b, ranks, tiles = products.b, products.ranks, products.tiles
    are_few = len(tiles) <= _FEW_TILES
    is_dependent = are_few and has_dependent_launch(x.get_device())
    out = y if gate is None else y.new_empty(len(y), y.shape[1] // 2)
    made = _shrink(x, products, is_dependent=is_dependent)
    columns = (_EXPAND_BYTES if gate is None or are_few else _GATE_BYTES) // y.itemsize
    expand_kernel[(len(spans), len(tiles))](
        made,
        b,
        ranks,
        products.tokens,
        tiles,
        spans,
        y,
        out,
        y.shape[1],
        y.stride(0),
        b.stride(0),
        ranks.stride(0),
        made.stride(0),
        len(made),
        SOURCES=products.num_sources,
        MAX_RANK=products.max_rank,
        RANKS=min(_MAX_RANK_TILE, power_of_2_from(products.max_rank)),
        ROWS=products.tile_rows,
        COLUMNS=columns,
        STAGES=_EXPAND_STAGES[y.itemsize],
        GATE=gate,
        IS_ALIGNED=products.is_aligned,
        IS_DEPENDENT=is_dependent,
        num_warps=4,
        **nvidia_options(launch_pdl=is_dependent),
    )
    return out


def add_low_rank(y: torch.Tensor, x: torch.Tensor, products: SlotProducts) -> None:
    """Add B A x to rows of y [T, out] in place, for x [T, in]."""
    assert y.stride(1) == 1
    if len(products.tokens):
        _add(y, x, products, gate=None, spans=products.spans)


def add_and_gate(y: torch.Tensor, x: torch.Tensor, products: SlotProducts, activation: str) -> torch.Tensor:
    """Return the activation of the first half times the second half of y + B A x, [T, out / 2]. All rows are among the
    tokens, and no span has outputs of both halves. y [T, out] may be changed."""
    assert y.stride(1) == 1 and len(products.tokens) == len(y) and not len(products.spans) % 2
    if not len(y):  # of a chunk of a prompt behind which nothing is sampled
        return y.new_empty(0, y.shape[1] // 2)
    return _add(y, x, products, gate=activation, spans=products.spans[: len(products.spans) // 2])

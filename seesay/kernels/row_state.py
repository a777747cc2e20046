"""Triton kernels that read and advance the rows' state on the device (see `seesay/llm/running/device_rows.py`)."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

TOKEN, LENGTH, OFFSET, STRETCH, SEED, STATE, OPTIONS = (tl.constexpr(place) for place in range(7))
NUM_OPTIONS = tl.constexpr(4)
NUM_FIELDS = tl.constexpr(6)
"""Of a draw: its row, its uniform number, and the options."""


@triton.jit(do_not_specialize=["num_rows"])
def begin_decode_kernel(
    state_ptr,
    table_ptr,
    slots_ptr,
    ids_ptr,
    positions_ptr,
    places_ptr,
    lens_ptr,
    stretches_ptr,
    faults_ptr,
    valid_ptr,
    tables_ptr,
    num_rows,
    scratch_slot,
    max_blocks,
    block_size,
    NUM_COLUMNS: tl.constexpr,
    NUM_AXES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Gather one row's input and used blocks, and add one to its length unless it is padding."""
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row)
    fields = state_ptr + slot * NUM_COLUMNS
    length = tl.load(fields + LENGTH)
    position = length + tl.load(fields + OFFSET)
    own_ptr = table_ptr + slot * max_blocks
    block = tl.load(own_ptr + length // block_size).to(tl.int64)
    tl.store(ids_ptr + row, tl.load(fields + TOKEN))
    for axis in tl.static_range(NUM_AXES):
        tl.store(positions_ptr + axis * num_rows + row, position)
    tl.store(places_ptr + row, block * block_size + length % block_size)
    tl.store(lens_ptr + row, (length + 1).to(tl.int32))
    tl.store(stretches_ptr + row, tl.load(fields + STRETCH).to(tl.float64, bitcast=True))
    tl.store(faults_ptr + row, 0.0)
    tl.store(valid_ptr + row, slot != scratch_slot)
    num_blocks = length // block_size + 1
    for first in range(0, num_blocks, BLOCK):
        places = first + tl.arange(0, BLOCK)
        is_used = places < num_blocks
        blocks = tl.load(own_ptr + places, mask=is_used, other=0)
        tl.store(tables_ptr + row.to(tl.int64) * max_blocks + places, blocks, mask=is_used)
    if slot != scratch_slot:
        tl.store(fields + LENGTH, length + 1)


def begin_decode(
    state: torch.Tensor,
    block_table: torch.Tensor,
    slots: torch.Tensor,
    tables: torch.Tensor,
    *,
    block_size: int,
    num_axes: int,
) -> tuple[torch.Tensor, ...]:
    """Gather the input of one token of each of the rows in `slots` int64 [n], and add one to their lengths.

    state: int64 [S + 1, C], block_table: int32 [S + 1, M]; slot S is padding, whose length stays. tables: int32
    [≥ n, M], whose first n rows get the rows' blocks as far as they are used, and are the last of what is returned:
    ids int64 [n], positions int64 [axes, n], places in the KV cache int64 [n], lengths int32 [n], stretches float64
    [n], zeros float32 [n], and whether rows are not padding, bool [n].
    """
    num_rows, device = len(slots), slots.device
    assert state.is_contiguous() and block_table.is_contiguous() and tables.is_contiguous()
    ids, places = (torch.empty(num_rows, dtype=torch.int64, device=device) for _ in range(2))
    positions = torch.empty(num_axes, num_rows, dtype=torch.int64, device=device)
    lens = torch.empty(num_rows, dtype=torch.int32, device=device)
    stretches = torch.empty(num_rows, dtype=torch.float64, device=device)
    faults = torch.empty(num_rows, dtype=torch.float32, device=device)
    is_valid = torch.empty(num_rows, dtype=torch.bool, device=device)
    begin_decode_kernel[(num_rows,)](
        state,
        block_table,
        slots,
        ids,
        positions,
        places,
        lens,
        stretches,
        faults,
        is_valid,
        tables,
        num_rows,
        len(state) - 1,
        block_table.shape[1],
        block_size,
        NUM_COLUMNS=state.shape[1],
        NUM_AXES=num_axes,
        BLOCK=256,
        num_warps=2,
    )
    return ids, positions, places, lens, stretches, faults, is_valid, tables[:num_rows]


@triton.jit
def _splitmix64(x):
    x = x + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit(do_not_specialize=["num_draws"], do_not_specialize_on_alignment=["slots_ptr", "at_ptr"])
def make_draws_kernel(
    state_ptr, slots_ptr, at_ptr, draws_ptr, num_draws, NUM_COLUMNS: tl.constexpr, BLOCK: tl.constexpr
):
    """Make BLOCK draws: a uniform number is a hash of the sequence's seed and length."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_inside = index < num_draws
    fields = state_ptr + tl.load(slots_ptr + index, mask=is_inside, other=0) * NUM_COLUMNS
    seed = tl.load(fields + SEED, mask=is_inside, other=0).to(tl.uint64)
    length = tl.load(fields + LENGTH, mask=is_inside, other=0).to(tl.uint64)
    mixed = _splitmix64(_splitmix64(seed) + length)
    point = (mixed >> 32).to(tl.int64) * 2 + 1
    draws = draws_ptr + index * NUM_FIELDS
    tl.store(draws, tl.load(at_ptr + index, mask=is_inside, other=0), mask=is_inside)
    tl.store(draws + 1, point, mask=is_inside)
    for option in tl.static_range(NUM_OPTIONS):
        tl.store(draws + 2 + option, tl.load(fields + OPTIONS + option, mask=is_inside, other=0), mask=is_inside)


def make_draws(state: torch.Tensor, slots: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Return int64 [D, 6]: `at` int64 [D], and the uniform number and the options of the sequences in `slots` int64
    [D], by their `state` int64 [S + 1, C]."""
    assert state.is_contiguous() and slots.is_contiguous() and at.is_contiguous()
    draws = torch.empty(len(slots), NUM_FIELDS.value, dtype=torch.int64, device=slots.device)
    make_draws_kernel[(triton.cdiv(len(slots), 128),)](
        state, slots, at, draws, len(slots), NUM_COLUMNS=state.shape[1], BLOCK=128, num_warps=4
    )
    return draws

"""Sums over ranks whose GPUs reach each other's memory, for tensors so small that latency counts.

Each rank has a buffer that its peers write to. An element that has not arrived yet is EMPTY, so a kernel that reads
its own buffer sees by the values themselves what is there: no flags, no fences, no barrier (the idea of "Lamport"
buffers, after Lamport's single-producer queue). What was read becomes EMPTY again. Program i exchanges only with
programs i of the other ranks, through region i, so all ranks must launch the same grid in the same order.

A region has two halves, of which calls take one and then the other. A peer writes to a half again only after it got
this rank's elements of the call between, which is launched after all of this half was read and emptied. The number of
calls is counted on the device, per region, so a CUDA graph can be replayed any number of times.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from seesay.kernels.gpu import has_dependent_launch, nvidia_options
from seesay.kernels.sizes import power_of_2_from

NVIDIA_ALONE = True
"""It ends by PTX where another rank is missing, and reaches the memory of others by CUDA's addresses."""

MAX_PROGRAMS = 128
"""Most programs of a launch. Each has a region in the buffer of each rank."""
SLOT_BYTES = 32 * 1024
"""What one rank writes to one half of a region, at most."""
DTYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
MIN_TILE_BYTES = 4096
"""A program has at least this much, if there is so much: 16 bytes for each of 256 threads."""
PATIENCE = 30_000_000
"""How often a program looks for the elements of its peers before it ends the process; an attempt takes about 1 µs."""

EMPTY = tl.constexpr(-1)
"""The bits of an element that has not arrived: in each type a NaN, which senders replace by another."""


def count_bytes(size: int) -> int:
    """Return the bytes of one rank's buffer, among `size` ranks."""
    return MAX_PROGRAMS * 2 * size * SLOT_BYTES


@triton.jit
def _buffer_of(addresses_ptr, rank, WORD: tl.constexpr):
    return tl.multiple_of(tl.load(addresses_ptr + rank).to(tl.pointer_type(WORD)), 16)


@triton.jit
def _to_words(values, WORD: tl.constexpr):
    """Return the bits of the elements, as they are sent: none is EMPTY."""
    words = values.to(WORD, bitcast=True)
    largest: tl.constexpr = (1 << (WORD.primitive_bitwidth - 1)) - 1
    return tl.where(words == EMPTY, tl.full(words.shape, largest, WORD), words)


@triton.jit
def _send(words, is_inside, places, addresses_ptr, rank, peer, WORD: tl.constexpr):
    """Write words to these places of a peer's buffer; to none if the peer is the rank itself."""
    tl.store(_buffer_of(addresses_ptr, peer, WORD) + places, words, mask=is_inside & (peer != rank))


@triton.jit
def _check_patience(num_attempts, patience):
    """End the process with an error after too many attempts: a peer has died, or launches other kernels."""
    if num_attempts > patience:
        tl.inline_asm_elementwise("trap; mov.u32 $0, $1;", "=r,r", [num_attempts], tl.int32, is_pure=False, pack=1)


@triton.jit
def _receive_sum(
    words, is_inside, places, addresses_ptr, rank, patience, DTYPE: tl.constexpr, WORD: tl.constexpr,
    SIZE: tl.constexpr, SLOT: tl.constexpr,
):  # fmt: skip
    """Return the sum in float32, in the order of the ranks, of `words` of this rank and what peers sent. `places` are
    those of rank 0's slot."""
    buffer_ptr = _buffer_of(addresses_ptr, rank, WORD)
    total = tl.zeros(words.shape, tl.float32)
    num_missing, num_attempts = 1, 0
    while num_missing > 0:
        is_missing = words == EMPTY
        for peer in tl.static_range(SIZE):
            is_sent = is_inside & (peer != rank)
            found = tl.load(buffer_ptr + peer * SLOT + places, mask=is_sent, other=words, volatile=True)
            is_missing |= found == EMPTY
            value = found.to(DTYPE, bitcast=True).to(tl.float32)
            if peer == 0:
                total = value
            else:
                total += value
        num_missing = tl.max(is_missing.to(tl.int32), axis=0)
        num_attempts += 1
        _check_patience(num_attempts, patience)
    for peer in tl.static_range(SIZE):
        empty = tl.full(words.shape, EMPTY, WORD)
        tl.store(buffer_ptr + peer * SLOT + places, empty, mask=is_inside & (peer != rank))
    return total


@triton.jit
def _begin_call(counters_ptr, IS_DEPENDENT: tl.constexpr):
    """Return how many calls have used the program's region."""
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    return tl.load(counters_ptr + tl.program_id(0), volatile=True)


@triton.jit
def _half_of_region(num_calls, SIZE: tl.constexpr, SLOT: tl.constexpr):
    """Return where the call's half of the program's region begins, in elements."""
    return (tl.program_id(0).to(tl.int64) * 2 + (num_calls & 1)) * (SIZE * SLOT)


@triton.jit(do_not_specialize=["rank", "patience"])
def one_shot_kernel(
    x_ptr,
    out_ptr,
    addresses_ptr,
    counters_ptr,
    num_elements,
    rank,
    patience,
    DTYPE: tl.constexpr,
    WORD: tl.constexpr,
    SIZE: tl.constexpr,
    SLOT: tl.constexpr,
    TILE: tl.constexpr,
    ADDS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Each rank sends all its elements to all others. Program i sums up elements i · TILE …, rounds the sums, and puts
    them into `out`, or adds them to it."""
    num_calls = _begin_call(counters_ptr, IS_DEPENDENT)
    half = _half_of_region(num_calls, SIZE, SLOT)
    columns = tl.arange(0, TILE)
    offsets = tl.program_id(0) * TILE + columns
    is_inside = offsets < num_elements
    words = _to_words(tl.load(x_ptr + offsets, mask=is_inside, other=0.0), WORD)
    for peer in tl.static_range(SIZE):
        _send(words, is_inside, half + rank * SLOT + columns, addresses_ptr, rank, peer, WORD)
    total = _receive_sum(
        words, is_inside, half + columns, addresses_ptr, rank, patience, DTYPE, WORD, SIZE, SLOT
    )  # fmt: skip
    total = total.to(DTYPE)
    if ADDS:
        before = tl.load(out_ptr + offsets, mask=is_inside, other=0.0)
        total = (before.to(tl.float32) + total.to(tl.float32)).to(DTYPE)
    tl.store(out_ptr + offsets, total, mask=is_inside)
    tl.store(counters_ptr + tl.program_id(0), num_calls + 1)


@triton.jit(do_not_specialize=["rank", "patience"])
def two_shot_kernel(
    x_ptr,
    addresses_ptr,
    counters_ptr,
    num_elements,
    rank,
    patience,
    DTYPE: tl.constexpr,
    WORD: tl.constexpr,
    SIZE: tl.constexpr,
    SLOT: tl.constexpr,
    PART: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Rank r sums up part r of each program's SIZE · PART elements, and sends the sum to all others: a reduce-scatter
    into the first half of each slot, and an all-gather into the second."""
    num_calls = _begin_call(counters_ptr, IS_DEPENDENT)
    half = _half_of_region(num_calls, SIZE, SLOT)
    columns = tl.arange(0, PART)
    start = tl.program_id(0) * (SIZE * PART)
    for peer in tl.static_range(SIZE):
        offsets = start + peer * PART + columns
        is_inside = offsets < num_elements
        words = _to_words(tl.load(x_ptr + offsets, mask=is_inside, other=0.0), WORD)
        _send(words, is_inside, half + rank * SLOT + columns, addresses_ptr, rank, peer, WORD)
    offsets = start + rank * PART + columns
    is_own = offsets < num_elements
    own = _to_words(tl.load(x_ptr + offsets, mask=is_own, other=0.0), WORD)
    total = _receive_sum(
        own, is_own, half + columns, addresses_ptr, rank, patience, DTYPE, WORD, SIZE, SLOT
    )  # fmt: skip
    words = _to_words(total.to(DTYPE), WORD)
    for peer in tl.static_range(SIZE):
        _send(words, is_own, half + rank * SLOT + SLOT // 2 + columns, addresses_ptr, rank, peer, WORD)
    buffer_ptr = _buffer_of(addresses_ptr, rank, WORD) + half + SLOT // 2
    num_missing, num_attempts = 1, 0
    while num_missing > 0:
        is_missing = words == EMPTY
        for peer in tl.static_range(SIZE):
            offsets = start + peer * PART + columns
            is_inside = offsets < num_elements
            is_sent = is_inside & (peer != rank)
            found = tl.load(buffer_ptr + peer * SLOT + columns, mask=is_sent, other=words, volatile=True)
            is_missing |= is_sent & (found == EMPTY)
            tl.store(x_ptr + offsets, found.to(DTYPE, bitcast=True), mask=is_inside)
        num_missing = tl.max(is_missing.to(tl.int32), axis=0)
        num_attempts += 1
        _check_patience(num_attempts, patience)
    for peer in tl.static_range(SIZE):
        is_sent = (start + peer * PART + columns < num_elements) & (peer != rank)
        tl.store(buffer_ptr + peer * SLOT + columns, tl.full(words.shape, EMPTY, WORD), mask=is_sent)
    tl.store(counters_ptr + tl.program_id(0), num_calls + 1)


@dataclass(frozen=True, slots=True)
class PeerSums:
    """Sums over all ranks through the buffers of all, as one of the ranks sees them.

    addresses: int64 [size], where each rank's buffer of `count_bytes(size)` bytes begins, on this rank's device. All
    bytes are 0xFF at first. counters: int32 [MAX_PROGRAMS], 0 at first, this rank's own.
    """

    addresses: torch.Tensor
    counters: torch.Tensor
    rank: int
    patience: int = PATIENCE

    def can_sum(self, x: torch.Tensor) -> bool:
        """Return whether `sum_one_shot` and `sum_two_shot` take a tensor of this type and size."""
        return x.dtype in DTYPES and 0 < x.numel() * x.element_size() <= MAX_PROGRAMS * SLOT_BYTES

    def sum_one_shot(self, x: torch.Tensor, *, add_to: torch.Tensor | None = None) -> None:
        """Replace x, which is contiguous and for which `can_sum`, by its sum over all ranks, rounded once; or leave it,
        and add that sum to a tensor like it."""
        tile = _pick_tile(x, 1)
        one_shot_kernel[(-(-x.numel() // tile),)](
            x,
            x if add_to is None else add_to,
            self.addresses,
            self.counters,
            x.numel(),
            self.rank,
            self.patience,
            TILE=tile,
            ADDS=add_to is not None,
            num_warps=_pick_num_warps(tile * x.element_size()),
            **self._constants(x),
        )

    def sum_two_shot(self, x: torch.Tensor) -> None:
        """Do the same as `sum_one_shot`, but send 2 / size as much to each peer, in two trips."""
        size = len(self.addresses)
        part = _pick_tile(x, size)
        two_shot_kernel[(-(-x.numel() // (part * size)),)](
            x,
            self.addresses,
            self.counters,
            x.numel(),
            self.rank,
            self.patience,
            PART=part,
            num_warps=_pick_num_warps(part * x.element_size()),
            **self._constants(x),
        )

    def _constants(self, x: torch.Tensor) -> dict[str, object]:
        is_dependent = has_dependent_launch(x.get_device())
        return {
            "DTYPE": DTYPES[x.dtype],
            "WORD": tl.int32 if x.element_size() == 4 else tl.int16,
            "SIZE": len(self.addresses),
            "SLOT": SLOT_BYTES // x.element_size(),
            "IS_DEPENDENT": is_dependent,
            **nvidia_options(launch_pdl=is_dependent),
        }


def _pick_tile(x: torch.Tensor, num_parts: int) -> int:
    """Return how many elements each part of a program has, a power of two: few, while there are enough programs."""
    each = -(-x.numel() // (MAX_PROGRAMS * num_parts))
    return power_of_2_from(max(each, MIN_TILE_BYTES // (x.element_size() * power_of_2_from(num_parts))))


def _pick_num_warps(tile_bytes: int) -> int:
    """Return a number of warps whose threads have 16 bytes each, if possible."""
    return min(16, max(4, tile_bytes // (32 * 16)))

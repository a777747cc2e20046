"""Tilings of `few_row_matmul`, chosen by measurement. `python benchmarks/byte_products.py` measures those of
weights of one byte."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from seesay.kernels.sizes import power_of_2_from

MAX_ROWS = 32
"""Largest number of rows that do not slow down reading the weights."""
NUM_MULTIPROCESSORS = 132
"""Multiprocessors of the GPU on which the tilings were measured."""


_SHORTEST_SPAN, _MOST_PADDED = 512, 1.15


class Tiling(NamedTuple):
    """A program computes `num_outputs` columns of the result, from `span` elements of each weight row at a time.

    num_stages: spans that are loaded at once where tensor cores multiply; 0 for plain arithmetic, for one row alone.
    num_parts: parts of the inputs that are multiplied side by side, each by a warp; more than one only for weights of
    one byte with a scale per output, without an activation. num_prefetched: spans of each part that are brought into
    the cache before x is known; 0 for one part.
    """

    num_outputs: int
    span: int
    num_warps: int
    num_stages: int = 0
    num_parts: int = 1
    num_prefetched: int = 0


@cache
def tile_one_row(num_outputs: int, size: int, is_gated: bool, num_bytes: int) -> Tiling:
    """Return the tiling for one row, as measured on an H200 inside of whole layers with the sizes of Qwen2.5-7B,
    Llama-2-7B and Llama-3-8B. Plain arithmetic cannot keep up with numbers of one byte: for those of gated layers and
    of many inputs tensor cores multiply, at 3.3 to 3.9 TB/s in place of 2.2 to 3.0."""
    num_warps, num_stages, outputs = 4, 0, 2
    if num_bytes == 1 and not is_gated and size > 8192:
        tiling = _tile_parted(8, num_outputs, size)
        if tiling is not None:
            return tiling
    if num_bytes == 1 and is_gated:
        span, num_warps, num_stages, outputs = 256, 1, 5, 16
    elif is_gated or num_outputs > 65536:
        span = 4096
    elif size <= 8192:
        span, outputs = 4096, 4
    elif num_bytes == 1:
        span, num_warps = 2048, 2
    else:
        span, num_warps, outputs = 1024, 2 if size <= 16384 else 4, 4
    span = min(span, max(16, power_of_2_from(size)))
    if not num_stages and num_bytes > 1:
        span = _avoid_padding(span, size)
    return Tiling(num_outputs=outputs, span=span, num_warps=num_warps, num_stages=num_stages)


def _avoid_padding(span: int, size: int) -> int:
    """Return the longest span of which a row of weights has almost only whole ones, if it has several: programs wait
    for the loads of the last one as for those of the others. Gate and up of 27,648 · 5,120 weights take 67 µs with
    spans of 1,024, and 98 with 4,096; a single span may be padded."""
    while _SHORTEST_SPAN < span < size and -(-size // span) * span > size * _MOST_PADDED:
        span //= 2
    return span


@cache
def tile_few_rows(num_rows: int, num_outputs: int, size: int, is_gated: bool, can_part: bool) -> Tiling:
    """Return the tiling for a few rows, as measured on an H200 with 8, 16 and 32 rows. can_part: whether weights have
    one byte and a scale per output; without an activation, `parted_inputs_kernel` has such products."""
    parted = _tile_parted(num_rows, num_outputs, size) if can_part and not is_gated else None
    if parted is not None:
        return parted
    if num_outputs > 65536:
        tiling = Tiling(num_outputs=64, span=128, num_warps=4, num_stages=3 if num_rows <= 8 else 4)
    elif num_rows <= 8 and not is_gated and size > 8192:
        tiling = Tiling(num_outputs=16, span=512, num_warps=2, num_stages=4)
    elif num_rows <= 8:
        tiling = Tiling(num_outputs=16, span=256, num_warps=1, num_stages=6 if num_outputs <= size else 4)
    elif is_gated:
        tiling = Tiling(num_outputs=32, span=128, num_warps=2, num_stages=5 if can_part and num_rows > 16 else 4)
    elif size > 8192:
        tiling = Tiling(num_outputs=16, span=512, num_warps=2, num_stages=3)
    else:
        tiling = Tiling(num_outputs=64, span=128, num_warps=4, num_stages=4)
    return tiling._replace(span=max(16, min(tiling.span, power_of_2_from(size))))


def _tile_parted(num_rows: int, num_outputs: int, size: int) -> Tiling | None:
    """Return the tiling of `parted_inputs_kernel`, or None where another kernel is as fast: with so many programs per
    multiprocessor of an H200, which then run in turns.

    It was measured with FP8, 3,584 and 4,608 outputs: 68 MB of weights take 20 µs with up to 8 rows in bfloat16, 32
    with 16 rows and 35 with 32. int8 has the same tilings by rule. A program has as many outputs as leave the busiest
    multiprocessor least to do.
    """

    def count_turns(outputs: int) -> int:
        num_programs = -(-num_outputs // outputs)
        return -(-num_programs // NUM_MULTIPROCESSORS)

    def choose(padded: int) -> int:
        return min(range(padded, padded * 3 // 4 - 1, -1), key=lambda outputs: count_turns(outputs) * outputs)

    outputs = choose(16)
    if num_rows > 16 or (num_rows > 8 and count_turns(outputs) > 2):
        outputs = choose(32)
    turns = count_turns(outputs)
    if size < 2048 or turns > (3 if num_rows <= 8 else 2):
        return None
    tiling = Tiling(num_outputs=outputs, span=128, num_warps=4, num_stages=6, num_parts=4, num_prefetched=2)
    if num_rows <= 8:  # more programs leave each less room
        return tiling if turns <= 2 else tiling._replace(num_stages=4)
    if turns == 2 and outputs > 16:
        return tiling._replace(num_stages=3, num_prefetched=4)
    num_prefetched = 4 if size <= 8192 else 0
    return tiling._replace(span=64, num_stages=8 if outputs <= 16 else 6, num_prefetched=num_prefetched)

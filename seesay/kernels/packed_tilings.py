"""How many rows each way of multiplying packed weights is for, and its tilings: all that measurements decide.

`python benchmarks/packed.py` prints the time of every choice.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

MAX_FUSED_ROWS = 32
"""Largest number of rows for `packed_matmul.multiply_few`."""
MAX_TILED_ROWS = 256
"""Largest number of rows for `packed_matmul.multiply_tiles`. More are worth a matrix that is multiplied out."""


class FewRowTiling(NamedTuple):
    """A program computes `num_outputs` columns of the result. Each of its warps takes one block of inputs at a time.
    num_prefetched, a power of two or 0: blocks of each output that are brought into the cache before x is known."""

    num_outputs: int
    num_warps: int
    num_stages: int
    num_prefetched: int = 0


class Tiling(NamedTuple):
    """A program computes `num_outputs` columns of `num_rows` rows of the result."""

    num_rows: int
    num_outputs: int
    num_warps: int
    num_stages: int


_FEW_ROWS = {
    1: (FewRowTiling(16, 4, 3), FewRowTiling(32, 4, 2)),
    8: (FewRowTiling(16, 4, 3), FewRowTiling(32, 4, 2)),
    16: (FewRowTiling(16, 4, 2), FewRowTiling(16, 4, 2)),
    32: (FewRowTiling(32, 4, 2), FewRowTiling(16, 4, 2)),
}
"""By the largest number of rows: for a plain layer, and for one with a gate. Not measured yet: chosen by the number of
instructions per weight and by bytes in flight, and so that all fit into the shared memory of every GPU since Ampere."""
_TILES = {64: Tiling(64, 64, 4, 3), MAX_TILED_ROWS: Tiling(128, 128, 8, 2)}
"""By the largest number of rows. Not measured yet."""
_SMALL_TILES = Tiling(64, 64, 4, 2)
"""For GPUs with less shared memory."""


@cache
def tile_few_rows(num_rows: int, is_gated: bool) -> FewRowTiling:
    """Return the tiling for `num_rows` ≤ MAX_FUSED_ROWS."""
    return next(tilings for most, tilings in _FEW_ROWS.items() if num_rows <= most)[is_gated]


@cache
def tile_rows(num_rows: int, has_large_memory: bool) -> Tiling:
    """Return the tiling for any number of rows."""
    if not has_large_memory:
        return _SMALL_TILES
    return next((tiling for most, tiling in _TILES.items() if num_rows <= most), _TILES[MAX_TILED_ROWS])

"""How many rows each way of multiplying packed weights is for, and its tilings, chosen by measurement.

`python benchmarks/packed.py` prints the time of every choice.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from seesay.kernels.few_rows.few_row_tilings import NUM_MULTIPROCESSORS

MAX_FUSED_ROWS = 32
"""Largest number of rows for `packed_matmul.multiply_few`."""
MAX_GATED_ROWS = 16
"""Largest number of rows whose gate is fused with the product: tiles of 32 take half as long."""
_MAX_TILED_ROWS, _MAX_WIDE_ROWS, _WIDE_OUTPUTS = 128, 256, 16384
"""Largest number of rows for `packed_matmul.multiply_tiles`, and that of matrices with at least so many outputs. More
are worth a matrix that is multiplied out."""


MAX_ROWS_BESIDE_COPY = 48
"""Largest number of rows for `packed_matmul.multiply_tiles` where the matrix is there multiplied out, too."""


class FewRowTiling(NamedTuple):
    """A program computes `num_outputs` columns of the result. Each of its warps takes one block of inputs at a time.
    num_prefetched, a power of two or 0: blocks of each output that are brought into the cache before x is known."""

    num_outputs: int
    num_warps: int
    num_stages: int
    num_prefetched: int = 0


class Tiling(NamedTuple):
    """A program computes `num_outputs` columns of `num_rows` rows of the result. num_columns: words of each output that
    it takes at a time."""

    num_rows: int
    num_outputs: int
    num_warps: int
    num_stages: int
    num_columns: int = 64


_FEW_ROWS = {
    8: (FewRowTiling(16, 4, 3), FewRowTiling(16, 2, 3)),
    16: (FewRowTiling(16, 2, 3), FewRowTiling(16, 2, 3)),
    MAX_FUSED_ROWS: (FewRowTiling(32, 4, 2), FewRowTiling(16, 4, 2)),
}
"""By the largest number of rows: for a plain layer, and for one with a gate. Measured on an H200 with 4 bits and the
sizes of a 7B backbone. All fit into the shared memory of every GPU since Ampere."""
_FEW_PROGRAMS = {8: FewRowTiling(16, 8, 3, 16), 16: FewRowTiling(16, 4, 3), MAX_FUSED_ROWS: FewRowTiling(32, 4, 3, 16)}
"""For at most two programs per multiprocessor without a gate, where there is shared memory for it."""
_TILES = {
    32: (Tiling(32, 64, 4, 4, 32), Tiling(32, 128, 4, 3, 32)),
    64: (Tiling(32, 64, 4, 4, 32), Tiling(64, 128, 8, 3, 32)),
    _MAX_TILED_ROWS: (Tiling(64, 64, 4, 4, 32), Tiling(64, 128, 8, 3, 32)),
    _MAX_WIDE_ROWS: (Tiling(64, 64, 4, 3, 32), Tiling(128, 128, 8, 2, 32)),
}
"""By the largest number of rows: for a matrix, and for one with many outputs."""
_SMALL_TILES = Tiling(64, 64, 4, 2)
"""For GPUs with less shared memory."""


@cache
def tile_few_rows(num_rows: int, num_outputs: int, is_gated: bool, has_large_memory: bool) -> FewRowTiling:
    """Return the tiling for `num_rows` ≤ MAX_FUSED_ROWS."""
    table: dict[int, FewRowTiling] = {most: tilings[is_gated] for most, tilings in _FEW_ROWS.items()}
    if not is_gated and has_large_memory and -(-num_outputs // 16) <= 2 * NUM_MULTIPROCESSORS:
        table = _FEW_PROGRAMS
    return next(tiling for most, tiling in table.items() if num_rows <= most)


@cache
def tile_rows(num_rows: int, num_outputs: int, has_large_memory: bool) -> Tiling:
    """Return the tiling for any number of rows."""
    if not has_large_memory:
        return _SMALL_TILES
    tilings = next((tilings for most, tilings in _TILES.items() if num_rows <= most), _TILES[_MAX_WIDE_ROWS])
    return tilings[_is_wide(num_outputs)]


def max_tiled_rows(num_outputs: int) -> int:
    """Return the largest number of rows for which tiles take less time than a matrix that is multiplied out."""
    return _MAX_WIDE_ROWS if _is_wide(num_outputs) else _MAX_TILED_ROWS


def _is_wide(num_outputs: int) -> bool:
    return num_outputs >= _WIDE_OUTPUTS

"""Cutting pictures into slices of about the same area, in any shape (LLaVA-UHD, arXiv 2403.11703, section 3.1).

Pairs are (height, width), or (rows, columns). `side` is that of the square that has a slice's area.
"""

from __future__ import annotations

import math
from functools import lru_cache


@lru_cache(maxsize=1024)
def choose_grid(size: tuple[int, int], side: int, *, max_slices: int) -> tuple[int, int] | None:
    """Return the grid into which a picture is cut; None for one that is not cut.

    The picture has as many slices as its area has, at most `max_slices`, or one more or less, so that the shape of the
    grid is nearest to that of the picture. Of equally near grids the first one wins: fewer slices, then fewer columns.
    """
    height, width = size
    wanted = min(math.ceil(width * height / (side * side)), max_slices)
    if wanted <= 1:
        return None
    shape = math.log(width / height)
    best, best_difference = (1, 1), math.inf
    for count in range(max(2, wanted - 1), min(wanted + 1, max_slices) + 1):
        for columns in range(1, count + 1):
            rows, rest = divmod(count, columns)
            difference = abs(shape - math.log(columns / rows))
            if not rest and difference < best_difference:
                best, best_difference = (rows, columns), difference
    return best


def fit_area(size: tuple[float, float], side: int, multiple: int, *, enlarges: bool) -> tuple[int, int]:
    """Return the size of a picture that has the area of `side`², in about its shape, in multiples of `multiple` pixels.
    Unless it `enlarges`, a smaller picture keeps about its size."""
    height, width = size
    if enlarges or width * height > side * side:
        shape = width / height
        height = int(side / math.sqrt(shape))
        width = int(height * shape)
    return _round_to(height, multiple), _round_to(width, multiple)


def fit_slices(size: tuple[int, int], grid: tuple[int, int], side: int, multiple: int) -> tuple[int, int]:
    """Return the size of a picture all of whose slices are those of `fit_area`."""
    part = [_round_to(length, count) / count for length, count in zip(size, grid, strict=True)]
    height, width = fit_area((part[0], part[1]), side, multiple, enlarges=True)
    return grid[0] * height, grid[1] * width


def _round_to(length: float, multiple: int) -> int:
    return max(round(length / multiple) * multiple, multiple)

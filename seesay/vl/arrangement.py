"""Arrangements of a tower's rows, as arrays of row numbers (`seesay.encoders.arrangement`).

An array [height, width] lies as its rows lie in the picture, so that numpy's own slicing crops it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int32]


def number_rows(first: int, grid: tuple[int, int]) -> Rows:
    """Return the numbers of the rows of one tile: [height, width] from `first` on."""
    return first + np.arange(grid[0] * grid[1], dtype=np.int32).reshape(grid)


def join_tiles(first: int, tiles: tuple[int, int], grid: tuple[int, int]) -> Rows:
    """Return the numbers of the rows of `tiles` (rows, columns) of `grid` rows each, which follow each other from
    `first` on, as one picture."""
    numbers = number_rows(first, (tiles[0] * tiles[1], grid[0] * grid[1]))
    joined = numbers.reshape(*tiles, *grid).transpose(0, 2, 1, 3)
    return joined.reshape(tiles[0] * grid[0], tiles[1] * grid[1])


def unpad(numbers: Rows, size: tuple[int, int]) -> Rows:
    """Cut off what lies in the padding around a picture of `size` (height, width) that was fitted into the middle of
    `numbers`: LLaVA's rule, which keeps one more line than the picture has where the padding is odd."""
    (height, width), (full_height, full_width) = size, numbers.shape
    if width / height > full_width / full_height:
        padding = (full_height - int(round(height * (full_width / width), 7))) // 2
        return numbers[padding : full_height - padding]
    padding = (full_width - int(round(width * (full_height / height), 7))) // 2
    return numbers[:, padding : full_width - padding]


def end_lines(numbers: Rows, newline: int) -> Rows:
    """Put the row `newline` behind each line."""
    return np.pad(numbers, ((0, 0), (0, 1)), constant_values=newline)


def chain(*parts: Rows | list[int]) -> Rows:
    """Return the parts one after another, each line by line: [S]."""
    return np.concatenate([np.asarray(part, dtype=np.int32).ravel() for part in parts])

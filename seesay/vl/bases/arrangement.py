"""Arrangements of a tower's rows, as arrays of row numbers (`seesay.encoders.towers.arrangement`).

An array [height, width] lies as its rows lie in the picture, so that numpy's own slicing crops it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int32]
Blends = tuple[Rows, npt.NDArray[np.float32]]
"""Row numbers [..., 4], and the weights with which these four are added up."""


def number_rows(first: int, grid: tuple[int, int]) -> Rows:
    """Return the numbers of the rows of one tile: [height, width] from `first` on."""
    return first + np.arange(grid[0] * grid[1], dtype=np.int32).reshape(grid)


def join_tiles(first: int, tiles: tuple[int, int], grid: tuple[int, int]) -> Rows:
    """Return the numbers of the rows of `tiles` (rows, columns) of `grid` rows each, which follow each other from
    `first` on, as one picture."""
    numbers = number_rows(first, (tiles[0] * tiles[1], grid[0] * grid[1]))
    joined = numbers.reshape(*tiles, *grid).transpose(0, 2, 1, 3)
    return joined.reshape(tiles[0] * grid[0], tiles[1] * grid[1])


def unpad(numbers: Rows, size: tuple[int, int], *, num_digits: int | None = 7) -> Rows:
    """Cut off what lies in the padding around a picture of `size` (height, width) that was fitted into the middle of
    `numbers`: LLaVA's rule, which keeps one more line than the picture has where the padding is odd. Lengths are
    rounded to `num_digits` before they are rounded down, as by Transformers; None: they are not, as by LLaVA's authors.
    """
    (height, width), (full_height, full_width) = size, numbers.shape
    is_wide = width / height > full_width / full_height
    length = height * (full_width / width) if is_wide else width * (full_height / height)
    inner = int(length if num_digits is None else round(length, num_digits))
    padding = ((full_height if is_wide else full_width) - inner) // 2
    if is_wide:
        return numbers[padding : full_height - padding]
    return numbers[:, padding : full_width - padding]


def end_lines(numbers: Rows, newline: int) -> Rows:
    """Put the row `newline` behind each line."""
    return np.pad(numbers, ((0, 0), (0, 1)), constant_values=newline)


def shrink(numbers: Rows, size: tuple[int, int]) -> Blends:
    """Return the rows of a smaller picture of `size` (height, width), by torch's bilinear interpolation without aligned
    corners: [height, width, 4]."""
    (lines, down), (columns, right) = (_lie_between(old, new) for old, new in zip(numbers.shape, size, strict=True))
    picked = [numbers[lines[i]][:, columns[j]] for i in (0, 1) for j in (0, 1)]
    weights = [down[i][:, None] * right[j] for i in (0, 1) for j in (0, 1)]
    return np.stack(picked, axis=-1), np.stack(weights, axis=-1)


def _lie_between(old: int, new: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return the two of `old` lines that each of `new` lines lies between, and their shares: [2, new] each."""
    half = np.float32(0.5)
    places = np.maximum((np.arange(new, dtype=np.float32) + half) * np.float32(old / new) - half, np.float32(0))
    first = np.minimum(places.astype(np.int64), old - 1)
    share = (places - first).astype(np.float32)
    return np.stack((first, np.minimum(first + 1, old - 1))), np.stack((1 - share, share))


def blend(numbers: Rows) -> Blends:
    """Return rows that are taken as they are, in the form of `shrink`."""
    weights = np.zeros((*numbers.shape, 4), dtype=np.float32)
    weights[..., 0] = 1
    return np.repeat(numbers[..., None], 4, axis=-1), weights


def end_blended_lines(lines: Blends, newline: int) -> Blends:
    """As `end_lines`, for lines [height, width, 4]."""
    last = blend(np.full((len(lines[0]), 1), newline, dtype=np.int32))
    numbers, weights = (np.concatenate(pair, axis=1) for pair in zip(lines, last, strict=True))
    return numbers, weights


def chain(*parts: Rows) -> Rows:
    """Return the parts one after another, each line by line: [S]."""
    return np.concatenate([part.ravel() for part in parts])


def chain_blends(*parts: Blends) -> dict[str, npt.NDArray[Any]]:
    """Return the features of the parts one after another: `rows` and `row_weights` [S, 4]."""
    rows, weights = (np.concatenate([each.reshape(-1, 4) for each in kind]) for kind in zip(*parts, strict=True))
    return {"rows": rows, "row_weights": weights}

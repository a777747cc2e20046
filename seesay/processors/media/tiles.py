"""The sizes at which pictures are cut into tiles: one of several resolutions (LLaVA's any-resolution rule, arXiv
2408.03326, section 3.2), whole tiles along the longer side (Idefics3, arXiv 2408.12637, section 3.1), or crops that
overlap (Molmo, arXiv 2409.17146, section 2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain

import numpy as np

_COVERING = 0.9
"""Share of a picture's pixels that a grid shows for `fit_covering_grid` to be enough."""
_MAX_EDGE = 4096
"""Longest side in pixels of a picture that `fit_longest_edge` sizes."""


def select_resolution(size: tuple[int, int], resolutions: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the resolution that can show the most pixels of a picture of `size`, and of these the one that wastes the
    fewest of its own. Pairs are (height, width)."""

    def score(resolution: tuple[int, int]) -> tuple[int, int]:
        scale = min(resolution[1] / size[1], resolution[0] / size[0])
        shown = min(int(size[1] * scale) * int(size[0] * scale), size[0] * size[1])
        return shown, shown - resolution[0] * resolution[1]

    return max(resolutions, key=score)


def fit_inside(size: tuple[int, int], resolution: tuple[int, int]) -> tuple[int, int]:
    """Return the (height, width) of a picture of `size`, scaled until it touches `resolution` from inside."""
    height, width = size
    if resolution[1] / width < resolution[0] / height:
        return min(math.ceil(height * (resolution[1] / width)), resolution[0]), resolution[1]
    return resolution[0], min(math.ceil(width * (resolution[0] / height)), resolution[1])


def fit_longest_edge(size: tuple[int, int], edge: int) -> tuple[int, int]:
    """Return the (height, width) of a picture of `size`, scaled until its longer side is `edge`, then to 4,096 if that
    is less. The first scaling rounds the shorter side up to an even number."""
    height, width = _scale(size, edge)
    if size[1] >= size[0]:
        height = max(1, height + height % 2)
    else:
        width = max(1, width + width % 2)
    if max(height, width) > _MAX_EDGE:
        height, width = _scale((height, width), _MAX_EDGE)
    return max(1, height), max(1, width)


def fit_tiles(size: tuple[int, int], tile: int) -> tuple[int, int]:
    """Return the (height, width) of a picture of `size` in whole tiles of `tile`² pixels: the longer side is rounded up
    first, then the shorter one that goes with it."""
    height, width = _scale(size, math.ceil(max(size) / tile) * tile)
    return max(1, math.ceil(height / tile)) * tile, max(1, math.ceil(width / tile)) * tile


@lru_cache(maxsize=256)
def fit_covering_grid(size: tuple[int, int], tile: int, max_tiles: int) -> tuple[int, int]:
    """Return the (rows, columns) of the grid of at most `max_tiles` tiles of `tile`² pixels for a picture of `size`
    (Ovis 2): the one of the fewest tiles that shows more than 0.9 of its pixels, or else the one that shows the most.
    A part that is longer than a tile is shown as much smaller."""
    best, most, is_covered = (1, 1), -1.0, False
    for count in range(1, max_tiles + 1):
        for rows in (each for each in range(1, count + 1) if count % each == 0):
            grid = (rows, count // rows)
            share = _count_shown(size, tile, grid) / (size[0] * size[1])
            if share > most:
                best, most, is_covered = grid, share, share > _COVERING
        if is_covered:
            break
    return best


def _count_shown(size: tuple[int, int], tile: int, grid: tuple[int, int]) -> float:
    """Return how many pixels tiles show of a picture that is cut into a grid (rows, columns), of which the last row and
    column have what is left. Parts are added up one by one: where two grids show as much, rounding decides as
    published."""
    high, wide = size[0] // grid[0], size[1] // grid[1]
    last_high, last_wide = size[0] - (grid[0] - 1) * high, size[1] - (grid[1] - 1) * wide
    line = [_shown(high, wide, tile)] * (grid[1] - 1) + [_shown(high, last_wide, tile)]
    last_line = [_shown(last_high, wide, tile)] * (grid[1] - 1) + [_shown(last_high, last_wide, tile)]
    return sum(line * (grid[0] - 1) + last_line)


def _shown(height: int, width: int, tile: int) -> float:
    longer, shorter = max(height, width), min(height, width)
    return tile * (shorter / longer * tile) if longer > tile else longer * shorter


@lru_cache(maxsize=64)
def _list_canvases(max_tiles: int) -> dict[float, list[tuple[int, int]]]:
    """Return the (columns, rows) of all canvases of at most `max_tiles` tiles by their ratio, those of more tiles
    first."""
    canvases: dict[float, list[tuple[int, int]]] = {}
    for count in range(max_tiles, 0, -1):
        for columns in range(1, count + 1):
            if count % columns == 0:
                rows = count // columns
                canvases.setdefault(columns / rows, []).append((columns, rows))
    return canvases


def fit_canvas(size: tuple[int, int], tile: int, max_tiles: int) -> tuple[int, int]:
    """Return the (rows, columns) of the canvas of at most `max_tiles` tiles of `tile`² pixels for a picture of `size`
    (PerceptionLM, arXiv 2504.13180, section 2): of the canvases that can show all of its pixels, the one in which its
    shorter side is longest, where several are alike that of the fewest tiles in the order of `_list_canvases`; if there
    is none, the largest one of the ratio that is nearest, on the side of squares."""
    (height, width), canvases = size, _list_canvases(max_tiles)
    best, longest = None, -1.0
    for columns, rows in chain.from_iterable(canvases.values()):
        if columns * tile >= width and rows * tile >= height:
            shown = _shorter_side(size, (rows * tile, columns * tile))
            if shown >= longest:
                best, longest = (rows, columns), shown
    return best or _find_nearest_canvas(width / height, canvases)


def _find_nearest_canvas(wanted: float, canvases: Mapping[float, Sequence[tuple[int, int]]]) -> tuple[int, int]:
    """Return the (rows, columns) of the largest canvas of the ratio that is nearest to `wanted`, on the side of
    squares."""
    if wanted >= 1:
        ratio = min((each for each in canvases if each <= wanted), key=lambda each: abs(each - wanted))
        columns, rows = max(canvases[ratio], key=lambda canvas: canvas[0])
    else:
        larger = [each for each in canvases if each > wanted]
        ratio = min(larger, key=lambda each: abs(1 / each - 1 / wanted))
        columns, rows = max(canvases[ratio], key=lambda canvas: canvas[1])
    return rows, columns


def _shorter_side(size: tuple[int, int], canvas: tuple[int, int]) -> float:
    """Return the shorter side of a picture of `size` that is scaled until it touches `canvas` from inside, rounded as
    published; the height of a square."""
    ratio, factor = size[1] / size[0], min(canvas[1] / size[1], canvas[0] / size[0])
    if ratio > 1:
        return math.floor(factor * size[1] / ratio)
    return factor * size[0] if ratio == 1 else math.floor(factor * size[0] * ratio)


def _scale(size: tuple[int, int], longer: int) -> tuple[int, int]:
    """Return the (height, width) of a picture of `size` whose longer side is `longer`; the shorter one is rounded
    down."""
    ratio = size[1] / size[0]
    return (int(longer / ratio), longer) if size[1] >= size[0] else (longer, int(longer * ratio))


@lru_cache(maxsize=64)
def _list_crops(max_crops: int) -> tuple[tuple[int, int], ...]:
    """Return all (rows, columns) of at most `max_crops` crops, those of fewer crops and then of fewer rows first."""
    grids = ((rows, columns) for rows in range(1, max_crops + 1) for columns in range(1, max_crops // rows + 1))
    return tuple(sorted(grids, key=lambda grid: (math.prod(grid), grid[0])))


def choose_crops(size: tuple[int, int], window: int, margin: int, max_crops: int) -> tuple[int, int]:
    """Return the (rows, columns) of overlapping crops for a picture of `size` (height, width), each of which adds
    `window` pixels to `margin` along an axis (Molmo, arXiv 2409.17146, section 2): those that enlarge the picture
    least; if all shrink it, those that shrink it least. Ratios are float32, as published; sides below `margin` have
    negative ones."""
    grids = _list_crops(max_crops)
    own = np.array(size, dtype=np.float32) - np.float32(margin)
    with np.errstate(divide="ignore"):
        scales = ((np.array(grids, dtype=np.int64) * window).astype(np.float32) / own).min(axis=1)
    is_larger = scales >= 1
    if not is_larger.any():
        return grids[int(scales.argmax())]
    return grids[int(np.where(is_larger, scales, np.inf).argmin())]


def fit_as_float32(size: tuple[int, int], target: tuple[int, int]) -> tuple[int, int]:
    """Return the (height, width) of a picture of `size`, scaled to fit into `target`, rounded down as float32 numbers
    are (Molmo); at least 1."""
    height, width = (np.float32(length) for length in size)
    scale = min(np.float32(target[0]) / height, np.float32(target[1]) / width)
    return max(1, int(height * scale)), max(1, int(width * scale))

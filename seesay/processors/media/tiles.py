"""The sizes at which pictures are cut into tiles: one of several resolutions (LLaVA's any-resolution rule, arXiv
2408.03326, section 3.2), or whole tiles along the longer side (Idefics3, arXiv 2408.12637, section 3.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from seesay.processors.media.images import Frames, Resample, resize

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


def cut_padded(frame: Frames, resolution: tuple[int, int], tile: tuple[int, int], resample: Resample) -> Frames:
    """Fit a picture uint8 [1, H, W, 3] into the middle of `resolution`, black around it, and cut it into tiles: uint8
    [tiles, height, width, 3], row by row."""
    height, width = fit_inside((frame.shape[1], frame.shape[2]), resolution)
    canvas = np.zeros((*resolution, 3), dtype=np.uint8)
    top, left = (resolution[0] - height) // 2, (resolution[1] - width) // 2
    canvas[top : top + height, left : left + width] = resize(frame, (height, width), resample=resample)[0]
    return cut_grid(canvas[None], (resolution[0] // tile[0], resolution[1] // tile[1]))


def cut_grid(frame: Frames, grid: tuple[int, int]) -> Frames:
    """Cut a picture uint8 [1, H, W, 3] into the equal tiles of a `grid` (rows, columns): uint8 [tiles, height, width,
    3], row by row."""
    height, width = frame.shape[1] // grid[0], frame.shape[2] // grid[1]
    lines = frame.reshape(grid[0], height, grid[1], width, 3).transpose(0, 2, 1, 3, 4)
    return lines.reshape(-1, height, width, 3)


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


def _scale(size: tuple[int, int], longer: int) -> tuple[int, int]:
    """Return the (height, width) of a picture of `size` whose longer side is `longer`; the shorter one is rounded
    down."""
    ratio = size[1] / size[0]
    return (int(longer / ratio), longer) if size[1] >= size[0] else (longer, int(longer * ratio))

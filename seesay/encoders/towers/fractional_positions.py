"""Learned positions of a square table for pictures of other shapes: NaViT's fractional coordinates (arXiv 2307.06304,
section 2.1), or a table that is scaled to the picture's (ViT, arXiv 2010.11929, section 3.2)."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

Rounding = Literal["multiplied", "added", "divided"]
"""How corners are rounded: multiples of a step in float32 (Idefics3), steps added up by `torch.arange` (Idefics2 and
MiniCPM-V), or places divided by their number (MiniCPM-V 4.6)."""


def find_positions(grid: tuple[int, int], side: int, rounding: Rounding) -> npt.NDArray[np.int64]:
    """Return which position, of a square of side², each patch of a picture takes: int64 [height · width]. `grid` is
    (height, width) in patches.

    The square is stretched over the picture, and a patch takes the position in which its first corner lies. Corners lie
    on the edges of positions wherever one number divides the other, so `rounding` decides: it is that of the code the
    model was published with.
    """
    with torch.device("cpu"):
        edges = torch.arange(1 / side, 1.0, 1 / side)
        lines, columns = (torch.bucketize(_find_corners(count, rounding), edges, right=True) for count in grid)
    positions: npt.NDArray[np.int64] = (lines[:, None] * side + columns).flatten().numpy()
    return positions


def _find_corners(count: int, rounding: Rounding) -> Tensor:
    """Return the first corners, float32 [count], of patches in a line of length 1."""
    if rounding == "divided":
        return torch.arange(count) / count
    step = float(np.float32(1) / np.float32(count))
    if rounding == "multiplied":
        return torch.arange(count, dtype=torch.float32) * step
    return torch.arange(0, 1 - 1e-6, step)


def stretch_positions(table: Tensor, grid: tuple[int, int], *, antialias: bool = False) -> Tensor:
    """Return positions [height · width, size] for a `grid` (height, width) of patches: those of a square table [side²,
    size], scaled by bicubic interpolation in float32. antialias: of a table that is larger than the grid, each position
    counts."""
    side = math.isqrt(len(table))
    if grid == (side, side):
        return table
    square = table.float().view(1, side, side, -1).permute(0, 3, 1, 2)
    scaled = F.interpolate(square, size=grid, mode="bicubic", align_corners=False, antialias=antialias)
    return scaled.permute(0, 2, 3, 1).flatten(0, 2).to(table.dtype)

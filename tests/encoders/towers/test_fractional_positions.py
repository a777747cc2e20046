"""Positions of a square table for pictures of other shapes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from seesay.encoders.towers.fractional_positions import stretch_positions


@pytest.mark.parametrize("grid", [(7, 7), (32, 32), (5, 9), (16, 3)])
def test_a_table_is_stretched_as_a_picture_is(grid: tuple[int, int]) -> None:
    """Keys' cubic convolution with a = -0.75, centers of cells in place, edges repeated (IEEE TASSP 29, 1981)."""
    table = torch.randn(256, 5, generator=torch.Generator().manual_seed(3))
    square = table.view(16, 16, 5).numpy().astype(np.float64)
    lines, columns = (weigh(16, count) for count in grid)
    expected = np.einsum("hi,wj,ijc->hwc", lines, columns, square).reshape(-1, 5)
    found = stretch_positions(table, grid)
    torch.testing.assert_close(found, torch.from_numpy(expected).float(), atol=1e-5, rtol=1e-5)
    rounded = stretch_positions(table.bfloat16(), grid)
    assert rounded.dtype == torch.bfloat16 and (rounded.float() - found).abs().max() < 0.1


def weigh(count: int, new_count: int) -> np.ndarray:
    """The weights [new_count, count] of the old places for each of the new ones."""
    weights = np.zeros((new_count, count))
    for place in range(new_count):
        center = (place + 0.5) * count / new_count - 0.5
        for tap in range(int(np.floor(center)) - 1, int(np.floor(center)) + 3):
            weights[place, min(max(tap, 0), count - 1)] += convolve(abs(center - tap))
    return weights


def convolve(distance: float, a: float = -0.75) -> float:
    if distance <= 1:
        return (a + 2) * distance**3 - (a + 3) * distance**2 + 1
    return a * distance**3 - 5 * a * distance**2 + 8 * a * distance - 4 * a


def test_a_table_of_the_grids_size_is_taken_as_it_is() -> None:
    table = torch.randn(9, 4)
    assert stretch_positions(table, (3, 3)) is table

"""What the contract makes of the shapes that processors return."""

from __future__ import annotations

import pytest
import torch
from family_contract import list_pixels


def make_tiles(*shape: int) -> torch.Tensor:
    return torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float32).view(*shape)


def test_patches_and_tiles_are_listed_in_order() -> None:
    patches = make_tiles(5, 12)
    assert [vector.tolist() for vector in list_pixels(patches)] == patches.tolist()
    tiles = make_tiles(2, 3, 4, 6)
    found = list_pixels(tiles)
    assert [tuple(tile.shape) for tile in found] == [(4, 6, 3)] * 2
    assert torch.equal(torch.stack(found), tiles.permute(0, 2, 3, 1))


def test_tiles_that_fill_up_a_batch_are_left_out() -> None:
    tiles = make_tiles(2, 4, 3, 2, 2)
    tiles[0, 1:] = 0
    tiles[1, 3:] = 0
    assert torch.equal(torch.stack(list_pixels(tiles)), torch.cat((tiles[0, :1], tiles[1, :3])).permute(0, 2, 3, 1))
    tiles[1, 0] = 0
    with pytest.raises(AssertionError, match="padding lies behind"):
        list_pixels(tiles)


def test_a_mask_cuts_tiles_and_leaves_some_out() -> None:
    tiles = make_tiles(1, 3, 3, 4, 5)
    mask = torch.zeros(1, 3, 4, 5, dtype=torch.int64)
    mask[0, 0] = 1
    mask[0, 1, :2, :3] = 1
    first, second = list_pixels(tiles, mask)
    assert torch.equal(first, tiles[0, 0].permute(1, 2, 0))
    assert torch.equal(second, tiles[0, 1, :, :2, :3].permute(1, 2, 0))
    assert len(list_pixels(tiles[0], mask[0])) == 2
    mask[0, 1, 3, 4] = 1
    with pytest.raises(AssertionError, match="a mask keeps a corner"):
        list_pixels(tiles, mask)


def test_other_shapes_are_refused() -> None:
    with pytest.raises(AssertionError, match=r"pixels of shape \[2, 2, 2\]"):
        list_pixels(torch.zeros(2, 2, 2))

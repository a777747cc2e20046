from __future__ import annotations

import numpy as np
import pytest
import torch

from seesay.vl.bases.arrangement import (
    blend,
    chain,
    chain_blends,
    end_blended_lines,
    end_lines,
    join_tiles,
    shrink,
    unpad,
)


def test_tiles_are_joined_as_they_lie_in_the_picture() -> None:
    joined = join_tiles(6, (2, 3), (1, 2))
    assert joined.tolist() == [[6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 17]]
    joined = join_tiles(0, (1, 2), (2, 2))
    assert joined.tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]] and joined.dtype == np.int32
    assert join_tiles(4, (0, 0), (2, 2)).size == 0
    assert chain(joined, end_lines(joined[:1], -1)).tolist() == [0, 1, 4, 5, 2, 3, 6, 7, 0, 1, 4, 5, -1]


@pytest.mark.parametrize(
    ("size", "kept"),
    [((40, 40), (6, 6)), ((20, 40), (4, 6)), ((40, 19), (6, 2)), ((1, 400), (0, 6)), ((40, 30), (6, 4))],
)
def test_unpad_keeps_a_line_more_where_the_padding_is_odd(size: tuple[int, int], kept: tuple[int, int]) -> None:
    found = unpad(join_tiles(0, (1, 1), (6, 6)), size)
    assert found.shape == kept
    if found.size:
        assert found[0, 0] == (6 - kept[0]) // 2 * 6 + (6 - kept[1]) // 2


@pytest.mark.parametrize(
    ("old", "new"), [((27, 27), (14, 14)), ((5, 9), (4, 7)), ((3, 3), (3, 1)), ((81, 54), (40, 27))]
)
def test_shrink_is_torchs_bilinear_interpolation(old: tuple[int, int], new: tuple[int, int]) -> None:
    values = torch.randn(1, 8, *old)
    rows = values[0].flatten(1).T
    numbers, weights = shrink(join_tiles(0, (1, 1), old), new)
    found = (rows[torch.from_numpy(numbers)] * torch.from_numpy(weights)[..., None]).sum(dim=2)
    expected = torch.nn.functional.interpolate(values, new, mode="bilinear")[0].permute(1, 2, 0)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_blended_lines_end_and_are_chained() -> None:
    lines = end_blended_lines(shrink(join_tiles(0, (1, 1), (4, 4)), (2, 2)), -1)
    features = chain_blends(blend(np.array([7], dtype=np.int32)), lines)
    assert features["rows"].shape == features["row_weights"].shape == (7, 4)
    assert features["rows"][0].tolist() == [7] * 4 and features["rows"][3].tolist() == [-1] * 4
    assert features["row_weights"][3].tolist() == [1, 0, 0, 0]
    assert features["rows"].dtype == np.int32 and features["row_weights"].dtype == np.float32
    np.testing.assert_allclose(features["row_weights"].sum(axis=1), 1)

"""The products of the deterministic mode: right, and for a row the same bits with any rows beside it."""

from __future__ import annotations

import pytest
import torch
from triton_cases import DTYPES, MARKS, ON_GPU, assert_close, parametrize_grid, random, runs_here

pytestmark = MARKS

SHAPES = [(100, 96), (70, 152), (130, 40), *([(4608, 3584), (3584, 18944), (37888, 3584)] if ON_GPU else [])]
NUM_ROWS = [1, 2, 8, 9, 40, 64, 65, 130, *([257, 1000, 4096] if ON_GPU else [])]


@runs_here
@parametrize_grid(shape=SHAPES, dtype=DTYPES, num_rows=NUM_ROWS, has_bias=[False, True])
def test_product(shape: tuple[int, int], dtype: torch.dtype, num_rows: int, has_bias: bool) -> None:
    from seesay.kernels.fixed_matmul import add_product, multiply

    num_outputs, size = shape
    x, weight = random(num_rows, 2 * size, dtype=dtype)[:, :size], random(num_outputs, size, dtype=dtype, seed=1)
    bias = random(num_outputs, dtype=dtype, seed=2) if has_bias else None
    exact = x.double() @ weight.double().t()
    factor = 1.0 if size < 8192 else 1.5  # many sums, one after another
    assert_close(multiply(x, weight, bias), exact if bias is None else exact + bias.double(), factor)
    target = random(num_rows, num_outputs, dtype=dtype, seed=3)
    expected = target + multiply(x, weight, None)
    add_product(target, x, weight=weight)
    assert torch.equal(target, expected)


def draw_rows(count: int, size: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """In the interpreter, sums of the products are exact: NumPy chooses its order of adding by the shape."""
    rows = random(count, size, dtype=dtype, seed=seed)
    return rows if ON_GPU else (rows * 4).round() / 4


@runs_here
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [None, torch.int8])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_at_any_place_of_any_number_of_rows(
    shape: tuple[int, int], dtype: torch.dtype, kind: torch.dtype | None
) -> None:
    from seesay.kernels.fixed_matmul import multiply

    num_outputs, size = shape
    if kind is not None and dtype == torch.float32:
        pytest.skip("numbers of one byte are multiplied in 16 bits")
    weight, scale = random(num_outputs, size, dtype=dtype, seed=1), None
    if kind is not None:
        weight, scale = (weight * 40).clamp(-127, 127).to(kind), random(num_outputs, seed=4).abs()
    x, bias = draw_rows(1, size, dtype), random(num_outputs, dtype=dtype, seed=2)
    if kind is None:
        weight = draw_rows(num_outputs, size, dtype, seed=1)
    expected = multiply(x, weight, bias, scale=scale)
    for num_rows in NUM_ROWS:
        for place in {0, num_rows // 2, num_rows - 1}:
            rows = draw_rows(num_rows, size, dtype, seed=5)
            rows[place] = x[0]
            assert torch.equal(multiply(rows, weight, bias, scale=scale)[place], expected[0]), (num_rows, place)


@runs_here
def test_numbers_of_one_byte_have_a_scale_per_output() -> None:
    from seesay.kernels.fixed_matmul import multiply

    x, scale = random(20, 96, dtype=torch.float16), random(100, seed=1).abs()
    weight = (random(100, 96, seed=2) * 40).clamp(-127, 127).to(torch.int8)
    assert_close(multiply(x, weight, None, scale=scale), x.double() @ (weight.double() * scale.double()[:, None]).t())


@runs_here
def test_tilings_cover_all_outputs_evenly() -> None:
    from seesay.kernels.fixed_matmul import pick_tiling

    assert pick_tiling(1, 3584, 18944, 2, True)[:3] == (28, 64, 16)
    assert pick_tiling(1, 4608, 3584, 2, True)[:3] == (35, 64, 16)
    for num_rows in (1, 30, 64, 65, 256, 1000, 8192):
        for num_outputs in (16, 4608, 37888, 152064):
            for has_room in (False, True):
                tiling = pick_tiling(num_rows, num_outputs, 3584, 2, has_room)
                assert 0 < tiling.num_outputs <= tiling.padded and tiling.padded % 64 == 0
                stage = 2 * tiling.span * (tiling.padded + tiling.rows)
                assert tiling.num_stages * stage <= (160 << 10 if has_room else 96 << 10) or tiling.num_stages == 2

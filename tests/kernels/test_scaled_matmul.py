"""Products of quantized rows with quantized weights, against float64. On a GPU the tests run as they are, elsewhere
in Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

from random import Random

import pytest
import torch
from triton_cases import DEVICE, MARKS, ON_GPU, parametrize_grid, random, random_seeds, runs_here

from seesay.device.linear import block_fp8, int8
from seesay.device.linear.row_quantization import FP8_ROWS, INT8_ROWS, QuantizedRows, RowFormat, quantize_rows
from seesay.device.linear.scaled_weights import multiply_out

pytestmark = MARKS
SHAPES = [(1, 48, 64), (5, 40, 144), (70, 130, 400), (300, 272, 96)]
"""(rows, outputs, inputs)."""


def make_rows(num_rows: int, size: int, form: RowFormat) -> QuantizedRows:
    spread = torch.logspace(-3, 2, num_rows, device=DEVICE)[:, None]
    return quantize_rows(random(num_rows, size, seed=size) * spread, form)


def skip_without_fp8() -> None:
    if ON_GPU and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs a GPU that multiplies FP8")


@runs_here
@parametrize_grid(shape=SHAPES, has_bias=[True, False], dtype=[torch.bfloat16, torch.float32])
def test_int8_products_are_exact_but_for_rounding(
    shape: tuple[int, int, int], has_bias: bool, dtype: torch.dtype
) -> None:
    check_int8(shape, has_bias, dtype)


@runs_here
@random_seeds
def test_random_shapes(seed: int) -> None:
    chance = Random(seed)
    shape = chance.randint(1, 300), chance.randint(1, 200), chance.randrange(16, 600, 16)
    has_bias, dtype = chance.random() < 0.5, chance.choice((torch.bfloat16, torch.float32))
    check_int8(shape, has_bias, dtype)
    check_fp8_blocks(shape, has_bias, chance.choice((32, 64, 128, 256)))


def check_int8(shape: tuple[int, int, int], has_bias: bool, dtype: torch.dtype) -> None:
    from seesay.kernels.scaled_matmul import multiply_scaled

    num_rows, num_outputs, size = shape
    rows = make_rows(num_rows, size, INT8_ROWS)
    weight, scale = quantize_rows(random(num_outputs, size, seed=1), INT8_ROWS)
    bias = random(num_outputs, seed=2).to(dtype) if has_bias else None
    exact = (rows.numbers.double() * rows.scale.double()) @ (weight.double() * scale.double()).t()
    if bias is not None:
        exact += bias.double()
    found = multiply_scaled(rows, bias, weight=weight, scale=scale.flatten(), dtype=dtype)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, rtol=8e-3 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
    if not ON_GPU:
        expected = int8.multiply_exactly(rows, bias, weight=weight, scale=scale.flatten(), dtype=dtype)
        torch.testing.assert_close(found, expected)


@runs_here
@parametrize_grid(shape=SHAPES, has_bias=[True, False], group_size=[32, 128])
def test_products_of_fp8_blocks(shape: tuple[int, int, int], has_bias: bool, group_size: int) -> None:
    """Sizes are no multiples of the blocks, as in layers of 29,568 or with parts of 18,944 outputs."""
    check_fp8_blocks(shape, has_bias, group_size)


def check_fp8_blocks(shape: tuple[int, int, int], has_bias: bool, group_size: int) -> None:
    from seesay.kernels.scaled_matmul import multiply_scaled

    skip_without_fp8()
    num_rows, num_outputs, size = shape
    rows = make_rows(num_rows, size, RowFormat(FP8_ROWS.dtype, FP8_ROWS.largest, group_size))
    weight = random(num_outputs, size, seed=1).mul(20).to(torch.float8_e4m3fn)
    scale = (random(-(-size // group_size), num_outputs, seed=3).abs() + 0.1).t()
    bias = random(num_outputs, seed=2) if has_bias else None
    left = multiply_out(rows.numbers, rows.scale, group_size, torch.float64)
    exact = left @ multiply_out(weight, scale, group_size, torch.float64).t()
    if bias is not None:
        exact += bias.double()
    found = multiply_scaled(rows, bias, weight=weight, scale=scale, dtype=torch.float32, group_size=group_size)
    errors = (found.double() - exact).norm(dim=1) / exact.norm(dim=1)
    assert errors.max() < (2e-3 if ON_GPU else 1e-5), "tensor cores sum FP8 with about 14 bits"
    expected = block_fp8.multiply_exactly(
        rows, bias, weight=weight, scale=scale, dtype=torch.float32, group_size=group_size
    )
    assert ((expected.double() - exact).norm(dim=1) / exact.norm(dim=1)).max() < 1e-5


@runs_here
@pytest.mark.filterwarnings("ignore:invalid value")
def test_rows_that_are_not_finite_stay_alone() -> None:
    from seesay.kernels.quantize import quantize_rows as quantize
    from seesay.kernels.scaled_matmul import multiply_scaled

    x = random(3, 64, seed=0)
    weight, scale = quantize_rows(random(32, 64, seed=1), INT8_ROWS)
    for bad in (float("nan"), float("inf")):
        x[1, 7] = bad
        rows = quantize(x, torch.int8, 127.0)
        found = multiply_scaled(rows, None, weight=weight, scale=scale.flatten(), dtype=torch.float32)
        assert found.isfinite().all(1).tolist() == [True, False, True] and not found[1].isfinite().any()


@runs_here
def test_no_rows() -> None:
    from seesay.kernels.scaled_matmul import multiply_scaled

    weight, scale = quantize_rows(random(32, 64, seed=1), INT8_ROWS)
    rows = quantize_rows(random(0, 64, seed=1), INT8_ROWS)
    found = multiply_scaled(rows, None, weight=weight, scale=scale.flatten(), dtype=torch.float16)
    assert found.shape == (0, 32)

"""Products of a few rows, with what rides along, against float64. On a GPU the tests run as they are, elsewhere in
Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kernels.products import ACTIVATIONS, ALONG, TOLERANCES, Along, assert_close, check_in_a_graph, check_product
from triton_cases import IS_INTERPRETED, MARKS, on_gpu, parametrize_grid, random, runs_here

SHAPES = [(9, 5), (7, 3584), (20 if IS_INTERPRETED else 40, 4100), (33, 8)]
"""(outputs, inputs)."""

pytestmark = MARKS


def takes_rows(num_rows: int, dtype: torch.dtype, *_: Any) -> bool:
    """Several rows are for 16-bit types, and the interpreter multiplies matrices of bfloat16 wrongly."""
    return num_rows == 1 or dtype == torch.float16 or (dtype == torch.bfloat16 and not IS_INTERPRETED)


@runs_here
@parametrize_grid(takes_rows, num_rows=[1, 3, 32], dtype=TOLERANCES, shape=SHAPES, along=ALONG)
def test_product_with_what_rides_along(num_rows: int, dtype: torch.dtype, shape: tuple[int, int], along: Along) -> None:
    from seesay.kernels.few_row_matmul import multiply

    num_outputs, size = shape
    x = random(num_rows, size, dtype=dtype) + 0.5
    weight = random(num_outputs * (2 if along.activation else 1), size, dtype=dtype, seed=1) / size**0.5
    product = partial(multiply, weight=weight)
    check_product(product, weight, x, along)


@runs_here
@parametrize_grid(
    num_rows=[1, 3, 32],
    shape=[(26, 8200), (33, 8)],
    along=[Along(has_bias=True, activation="silu"), Along(adds=True)],
    scaled=[(torch.float8_e4m3fn, None), (torch.int8, None), (torch.float8_e4m3fn, 128)],
)
def test_weights_of_one_byte_with_scales(
    num_rows: int, shape: tuple[int, int], along: Along, scaled: tuple[torch.dtype, int | None]
) -> None:
    from seesay.kernels.few_row_matmul import multiply

    (num_outputs, size), (kind, group_size) = shape, scaled
    has_bias, _, activation, adds = along
    dtype = torch.float16 if IS_INTERPRETED else torch.bfloat16
    x = random(num_rows, size, dtype=dtype)
    num_rows_of_weight = num_outputs * (2 if activation else 1)
    spread = 20 if kind == torch.int8 else 1
    weight = (spread * random(num_rows_of_weight, size, dtype=torch.float32, seed=1)).to(kind)
    num_groups = 1 if group_size is None else -(-size // group_size)
    scale = random(num_groups, num_rows_of_weight, dtype=torch.float32, seed=5).abs() / (spread * size**0.5)
    fine = scale.t().repeat_interleave(group_size or size, 1)[:, :size]
    bias = random(num_rows_of_weight, dtype=dtype, seed=2) if has_bias else None
    exact = F.linear(x.double(), weight.double() * fine.double(), None if bias is None else bias.double())
    if activation is not None:
        gate, up = exact.chunk(2, -1)
        exact = ACTIVATIONS[activation](gate) * up
    target = random(num_rows, num_outputs, dtype=dtype, seed=4)
    if adds:
        exact = exact + target.double()
    options: Any = {"scale": scale[0]} if group_size is None else {"scale": scale.t(), "group_size": group_size}
    found = multiply(x, weight, bias, activation=activation, add_to=target if adds else None, **options)
    assert_close(found, exact)


@runs_here
def test_measured_shapes_have_the_tilings_that_were_fastest() -> None:
    """Of a layer of Qwen2.5-VL-7B in FP8: the inputs are divided where an output has many, or programs are few."""
    from seesay.kernels.few_row_matmul import Tiling, _tile_few_rows, _tile_one_row

    parted = {"span": 128, "num_warps": 4, "num_parts": 4}
    assert _tile_one_row(4608, 3584, False, 1) == _tile_one_row(3584, 3584, False, 1) == Tiling(4, 4096, 4)
    assert _tile_one_row(18944, 3584, True, 1) == Tiling(32, 256, 2, 4)
    assert _tile_one_row(3584, 18944, False, 1) == Tiling(num_outputs=14, num_stages=6, **parted)
    assert _tile_few_rows(8, 4608, 3584, False, True) == Tiling(num_outputs=12, num_stages=4, **parted)
    assert _tile_few_rows(8, 3584, 18944, False, True) == Tiling(num_outputs=14, num_stages=6, **parted)
    for size in (3584, 18944):
        assert _tile_few_rows(32, 3584, size, False, True) == Tiling(num_outputs=14, num_stages=3, **parted)
    assert _tile_few_rows(32, 4608, 3584, False, True) == Tiling(num_outputs=24, num_stages=3, **parted)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("num_rows", [1, 8, 32])
def test_inputs_beyond_float16_do_not_overflow(num_rows: int) -> None:
    from seesay.kernels.few_row_matmul import multiply

    x = random(num_rows, 18944, dtype=torch.bfloat16) * 2.0**20
    weight = random(64, 18944, dtype=torch.float32, seed=1).to(torch.float8_e4m3fn)
    scale = random(64, dtype=torch.float32, seed=5).abs() / 138
    assert_close(multiply(x, weight, None, scale=scale), x.double() @ (weight.double() * scale.double()[:, None]).t())


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("num_rows", [1, 3])
def test_products_that_depend_on_each_other_in_a_graph(num_rows: int) -> None:
    from seesay.kernels.few_row_matmul import multiply

    size, wide, dtype = 3584, 5120, torch.bfloat16
    up = [partial(multiply, weight=random(2 * wide, size, dtype=dtype, seed=i) / size**0.5) for i in range(4)]
    down = [partial(multiply, weight=random(size, wide, dtype=dtype, seed=10 + i) / wide**0.5) for i in range(4)]
    check_in_a_graph(up * 4, down * 4, num_rows, size)

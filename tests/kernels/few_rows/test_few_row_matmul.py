"""Products of a few rows, with what rides along, against float64. On a GPU the tests run as they are, elsewhere in
Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kernels.products import (
    ALONG,
    TOLERANCES,
    Along,
    assert_close,
    check_in_a_graph,
    check_product,
    multiply_gate,
)
from triton_cases import DEVICE, IS_INTERPRETED, MARKS, on_gpu, parametrize_grid, random, random_seeds, runs_here

from seesay.kernels.few_rows.few_row_tilings import Tiling

SHAPES = [(9, 5), (7, 3584), (20 if IS_INTERPRETED else 40, 4100), (33, 8)]
"""(outputs, inputs)."""

pytestmark = MARKS


def takes_rows(num_rows: int, dtype: torch.dtype, *_: Any) -> bool:
    """Several rows are for 16-bit types, and the interpreter multiplies matrices of bfloat16 wrongly."""
    return num_rows == 1 or dtype == torch.float16 or (dtype == torch.bfloat16 and not IS_INTERPRETED)


@runs_here
@parametrize_grid(takes_rows, num_rows=[1, 3, 32], dtype=TOLERANCES, shape=SHAPES, along=ALONG)
def test_product_with_what_rides_along(num_rows: int, dtype: torch.dtype, shape: tuple[int, int], along: Along) -> None:
    from seesay.kernels.few_rows.few_row_matmul import multiply

    num_outputs, size = shape
    x = random(num_rows, size, dtype=dtype) + 0.5
    weight = random(num_outputs * (2 if along.activation else 1), size, dtype=dtype, seed=1) / size**0.5
    product = partial(multiply, weight=weight)
    check_product(product, weight, x, along)


SCALED: list[tuple[torch.dtype, int | None]] = [
    (torch.float8_e4m3fn, None), (torch.int8, None), (torch.float8_e4m3fn, 128)
]  # fmt: skip
"""(numbers, inputs that share a scale; None: all)."""


@runs_here
@parametrize_grid(
    num_rows=[1, 3, 32],
    shape=[(26, 8200), (33, 8)],
    along=[Along(has_bias=True, activation="silu"), Along(adds=True)],
    scaled=SCALED,
)
def test_weights_of_one_byte_with_scales(
    num_rows: int, shape: tuple[int, int], along: Along, scaled: tuple[torch.dtype, int | None]
) -> None:
    check_scaled(num_rows, shape, along, scaled)


@runs_here
@random_seeds
def test_weights_of_one_byte_of_random_shapes(seed: int) -> None:
    chance = Random(seed)
    along = Along(has_bias=chance.random() < 0.5, activation=chance.choice((None, "silu")), adds=chance.random() < 0.5)
    shape = chance.randint(1, 70), chance.randint(1, 3000)
    check_scaled(chance.randint(1, 32), shape, along, chance.choice(SCALED))


def check_scaled(num_rows: int, shape: tuple[int, int], along: Along, scaled: tuple[torch.dtype, int | None]) -> None:
    from seesay.kernels.few_rows.few_row_matmul import multiply

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
        exact = multiply_gate(gate, up, activation)
    target = random(num_rows, num_outputs, dtype=dtype, seed=4)
    if adds:
        exact = exact + target.double()
    options: Any = {"scale": scale[0]} if group_size is None else {"scale": scale.t(), "group_size": group_size}
    found = multiply(x, weight, bias, activation=activation, add_to=target if adds else None, **options)
    assert_close(found, exact)


@runs_here
def test_measured_shapes_have_the_tilings_that_were_fastest() -> None:
    """Of a layer of Qwen2.5-VL-7B: in FP8 the inputs are divided where an output has many, or programs are few."""
    from seesay.kernels.few_rows.few_row_tilings import tile_few_rows, tile_one_row

    for num_bytes in (1, 2):
        assert tile_one_row(152_064, 3584, False, num_bytes) == Tiling(2, 4096, 4)
    assert tile_one_row(4608, 3584, False, 2) == tile_one_row(3584, 3584, False, 2) == Tiling(4, 4096, 4)
    assert tile_one_row(18944, 3584, True, 2) == Tiling(2, 4096, 4)
    assert tile_one_row(3584, 18944, False, 2) == Tiling(4, 1024, 4)
    # Of sizes that are far from a multiple of the span, smaller ones.
    assert tile_one_row(3584, 5120, False, 2) == Tiling(4, 1024, 4)
    assert tile_one_row(27_648, 5120, True, 2) == Tiling(2, 1024, 4)
    assert tile_one_row(5120, 2560, False, 2) == Tiling(4, 4096, 4)
    assert tile_one_row(4096, 11008, False, 2) == Tiling(4, 1024, 2), "Llama 2"
    parted = {"num_warps": 4, "num_parts": 4}
    assert tile_one_row(4608, 3584, False, 1) == tile_one_row(3584, 3584, False, 1) == Tiling(4, 4096, 4)
    assert tile_one_row(18944, 3584, True, 1) == Tiling(16, 256, 1, 5)
    assert tile_few_rows(8, 18944, 3584, True, True) == Tiling(16, 256, 1, 4)
    assert tile_few_rows(32, 18944, 3584, True, True) == Tiling(32, 128, 2, 5)
    assert tile_few_rows(8, 4608, 3584, False, False) == Tiling(16, 256, 1, 4)
    assert tile_few_rows(8, 3584, 3584, False, False) == Tiling(16, 256, 1, 6)
    assert tile_few_rows(8, 3584, 18944, False, False) == Tiling(16, 512, 2, 4)
    down = Tiling(14, 128, num_stages=6, num_prefetched=2, **parted)
    assert tile_one_row(3584, 18944, False, 1) == tile_few_rows(8, 3584, 18944, False, True) == down
    assert tile_few_rows(8, 3584, 3584, False, True) == down
    assert tile_few_rows(8, 4608, 3584, False, True) == Tiling(12, 128, num_stages=4, num_prefetched=2, **parted)
    assert tile_few_rows(16, 3584, 18944, False, True) == Tiling(14, 64, num_stages=8, **parted)
    assert tile_few_rows(32, 3584, 18944, False, True) == Tiling(28, 64, num_stages=6, **parted)
    assert tile_few_rows(32, 3584, 3584, False, True) == Tiling(28, 64, num_stages=6, num_prefetched=4, **parted)
    for num_rows in (16, 32):
        qkv = Tiling(24, 128, num_stages=3, num_prefetched=4, **parted)
        assert tile_few_rows(num_rows, 4608, 3584, False, True) == qkv


PARTED = Tiling(num_outputs=14, span=32, num_warps=4, num_stages=3, num_parts=4)
FEW = Tiling(num_outputs=16, span=64, num_warps=1, num_stages=3)


@runs_here
@pytest.mark.parametrize("tiling", [PARTED, FEW])
def test_every_number_of_fp8_keeps_its_value(tiling: Tiling) -> None:
    """Each row of x picks a column of weights that have all numbers there are, subnormal ones included."""
    from seesay.kernels.few_rows.few_row_matmul import multiply

    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    numbers = torch.where(numbers.isnan(), 0.0, numbers.float()).to(torch.float8_e4m3fn)
    weight = torch.stack([numbers.roll(7 * i) for i in range(16)]).to(DEVICE)
    dtype = torch.float16 if IS_INTERPRETED else torch.bfloat16
    for first in range(0, 256, 32):
        columns = torch.arange(first, first + 32, device=DEVICE)
        x = torch.zeros(32, 256, dtype=dtype, device=DEVICE)
        x[torch.arange(32), columns] = 1.0
        found = multiply(x, weight, None, scale=torch.ones(16, device=DEVICE), tiling=tiling)
        assert torch.equal(found.float(), weight.float().t()[columns])


@runs_here
@parametrize_grid(
    tiling=[PARTED, FEW, PARTED._replace(num_prefetched=2)],
    num_rows=[1, 5, 32],
    shape=[(30, 400), (33, 1040), (5, 104)],
    along=[Along(has_bias=True), Along(has_bias=True, adds=True), Along(has_norm=True)],
)
def test_tilings_compute_the_same(tiling: Tiling, num_rows: int, shape: tuple[int, int], along: Along) -> None:
    """Parts of the inputs may be empty, and programs may have fewer outputs than tensor cores multiply."""
    from seesay.kernels.few_rows.few_row_matmul import multiply

    num_outputs, size = shape
    x = random(num_rows, size, dtype=torch.float16 if IS_INTERPRETED else torch.bfloat16)
    weight = random(num_outputs, size, dtype=torch.float32, seed=1).to(torch.float8_e4m3fn)
    scale = random(num_outputs, dtype=torch.float32, seed=5).abs() / size**0.5
    product = partial(multiply, weight=weight, scale=scale, tiling=tiling)
    check_product(product, weight.double() * scale.double()[:, None], x, along)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("num_rows", [1, 8, 32])
@pytest.mark.parametrize("size", [3584, 18944])
def test_inputs_of_any_size_keep_their_precision(num_rows: int, size: int) -> None:
    """No norm bounds the inputs of some layers. Rows of 10^-30 to 10^30 are as exact as others, and what is not finite
    stays in its row."""
    from seesay.kernels.few_rows.few_row_matmul import multiply

    weight = random(64, size, dtype=torch.float32, seed=1).to(torch.float8_e4m3fn)
    scale = random(64, dtype=torch.float32, seed=5).abs() / size**0.5
    exact_weight = (weight.double() * scale.double()[:, None]).t()
    x = random(num_rows, size, dtype=torch.float32)
    for exponent in range(-30, 31, 5):
        spread = 10.0 ** random(num_rows, size, dtype=torch.float32, seed=exponent)  # within a row, too
        scaled = (x * spread * 10.0**exponent).to(torch.bfloat16)
        found = multiply(scaled, weight, None, scale=scale).double() / 10.0**exponent
        assert_close(found.to(torch.bfloat16), scaled.double() @ exact_weight / 10.0**exponent)
    for bad in (float("inf"), float("nan")):
        broken = x.to(torch.bfloat16)
        broken[num_rows // 2, 17] = bad
        found = multiply(broken, weight, None, scale=scale).isfinite()
        assert not found[num_rows // 2].any() and found[torch.arange(num_rows) != num_rows // 2].all()


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("num_rows", [1, 3, 32])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float8_e4m3fn])
def test_products_that_depend_on_each_other_in_a_graph(num_rows: int, kind: torch.dtype) -> None:
    from seesay.kernels.few_rows.few_row_matmul import multiply

    size, wide = 3584, 9728

    def make(num_outputs: int, num_inputs: int, seed: int) -> partial[torch.Tensor]:
        weight = random(num_outputs, num_inputs, dtype=torch.bfloat16, seed=seed)
        if kind == torch.bfloat16:
            return partial(multiply, weight=weight / num_inputs**0.5)
        scale = torch.full((num_outputs,), num_inputs**-0.5, device=DEVICE)
        return partial(multiply, weight=weight.to(kind), scale=scale)

    up = [make(2 * wide, size, i) for i in range(4)]
    down = [make(size, wide, 10 + i) for i in range(4)]
    check_in_a_graph(up * 4, down * 4, num_rows, size)

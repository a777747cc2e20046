"""Products with packed matrices, with what rides along, against float64. On a GPU the tests run as they are,
elsewhere in Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
import torch
import torch.nn.functional as F
from kernels.products import ALONG, Along, assert_close, check_in_a_graph, check_product
from triton_cases import (
    DEVICE,
    IS_INTERPRETED,
    MARKS,
    ON_GPU,
    on_gpu,
    parametrize_grid,
    random,
    random_seeds,
    runs_here,
)

from seesay.device.linear.packed_product import make_packed_product, make_torch_product, to_kernel
from seesay.device.linear.packed_weight import PackedWeight, Packer

DTYPES = [torch.float16] if IS_INTERPRETED else [torch.float16, torch.bfloat16]
"""The interpreter multiplies matrices of bfloat16 wrongly."""

pytestmark = MARKS

CASES = [
    (9, 48, 16, 4, False),
    (16, 256, 128, 4, False),
    (33, 300, 32, 4, True),
    (7, 3584, 128, 4, False),
    (40, 1100, 64, 4, True),
    (24, 200, None, 4, False),
    (17, 640, 96, 4, False),
    (12, 320, 32, 8, True),
    (10, 130, None, 8, False),
    (5, 1408, 512, 8, False),
]
"""(outputs, inputs, group size, bits, has order): groups of one plane, of several, and of a part; uneven sizes."""


def make_matrix(
    num_outputs: int, num_inputs: int, group_size: int | None, bits: int, has_order: bool, *, seed: int = 0
) -> tuple[PackedWeight, torch.Tensor]:
    """Return a packed matrix of random numbers, all of which are in it, and the same in float64. Scales are numbers of
    both 16-bit types."""
    generator = torch.Generator().manual_seed(seed)
    size = num_inputs if group_size is None else group_size
    groups = torch.arange(num_inputs) // size
    most = 1 << bits
    numbers = torch.randint(0, most, (num_outputs, num_inputs), generator=generator)
    zeros = torch.randint(0, most + 1, (int(groups[-1]) + 1, num_outputs), generator=generator)
    scales = (torch.rand(zeros.shape, generator=generator) + 0.5).mul_(1 / most / num_inputs**0.5).bfloat16().half()
    order = torch.randperm(num_inputs, generator=generator) if has_order else None
    packer = Packer(num_outputs=num_outputs, num_inputs=num_inputs, group_size=group_size, bits=bits, device=DEVICE)
    shuffled = numbers if order is None else torch.empty_like(numbers).index_copy_(1, order, numbers)
    stored = shuffled.to(DEVICE, torch.uint8)
    order = None if order is None else order.to(DEVICE)
    packer.fill(0, num_outputs, lambda start, stop: stored[start:stop], order)
    exact = ((numbers - zeros.t()[:, groups]).double() * scales.double().t()[:, groups]).to(DEVICE)
    if order is not None:
        exact = torch.empty_like(exact).index_copy_(1, order, exact)
    return packer.finish(scales.to(DEVICE), zeros.to(DEVICE), order), exact


@pytest.mark.parametrize("case", CASES)
def test_torch_multiplies_out_what_was_packed(case: tuple[int, int, int | None, int, bool]) -> None:
    weight, exact = make_matrix(*case)
    found = weight.multiply_out(0, case[0], torch.float64)
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=0)
    assert torch.equal(weight.multiply_out(3, 5, torch.float64), found[3:5])


@runs_here
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_the_kernel_multiplies_out_the_same(case: tuple[int, int, int | None, int, bool], dtype: torch.dtype) -> None:
    from seesay.kernels.packed.packed_numbers import multiply_out

    weight, _ = make_matrix(*case)
    for start, stop in ((0, case[0]), (2, 5)):
        assert torch.equal(
            multiply_out(to_kernel(weight, dtype), start, stop, dtype), weight.multiply_out(start, stop, dtype)
        )


@runs_here
@parametrize_grid(num_rows=[1, 3, 32], case=CASES, dtype=DTYPES, along=ALONG)
def test_few_rows_with_what_rides_along(
    num_rows: int,
    case: tuple[int, int, int | None, int, bool],
    dtype: torch.dtype,
    along: Along,
) -> None:
    from seesay.kernels.packed.packed_matmul import multiply_few

    weight, exact_weight = make_matrix(case[0] * (2 if along.activation else 1), *case[1:])
    multiply = partial(multiply_few, packed=to_kernel(weight, dtype))
    x = random(num_rows, case[1], dtype=dtype) + 0.5
    check_product(multiply, exact_weight, x, along)


@runs_here
@parametrize_grid(num_rows=[1, 33, 150 if ON_GPU else 70], case=CASES, dtype=DTYPES)
def test_tiles_of_rows(num_rows: int, case: tuple[int, int, int | None, int, bool], dtype: torch.dtype) -> None:
    from seesay.kernels.packed.packed_matmul import multiply_tiles

    weight, exact_weight = make_matrix(*case)
    x = random(num_rows, case[1] + 8, dtype=dtype)  # columns behind the inputs are padding
    bias = random(case[0], dtype=dtype, seed=2) if num_rows == 33 else None
    found = multiply_tiles(x, to_kernel(weight, dtype), bias)
    assert_close(found, F.linear(x.double()[:, : case[1]], exact_weight, None if bias is None else bias.double()))


@runs_here
@random_seeds
def test_random_shapes(seed: int) -> None:
    from seesay.kernels.packed.packed_matmul import multiply_few, multiply_tiles
    from seesay.kernels.packed.packed_numbers import multiply_out

    chance = Random(seed)
    group_size = chance.choice((16, 32, 48, 64, 128, None))
    case = (chance.randint(1, 60), chance.randrange(8, 1500, 2), group_size, chance.choice((4, 8)))
    along, dtype = chance.choice(ALONG), chance.choice(DTYPES)
    weight, exact = make_matrix(case[0] * (2 if along.activation else 1), *case[1:], chance.random() < 0.5, seed=seed)
    packed = to_kernel(weight, dtype)
    check_product(
        partial(multiply_few, packed=packed), exact, random(chance.randint(1, 32), case[1], dtype=dtype), along
    )
    x = random(chance.randint(1, 200), case[1], dtype=dtype)
    assert_close(multiply_tiles(x, packed, None), x.double() @ exact.t())
    start, stop = sorted(chance.sample(range(len(exact) + 1), 2))
    assert torch.equal(multiply_out(packed, start, stop, dtype), weight.multiply_out(start, stop, dtype))


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("num_rows", [1, 32, 48, 49, 256, 300])
def test_products_of_all_numbers_of_rows(num_rows: int) -> None:
    """Each way of the GPU, and that of torch."""
    weight, exact = make_matrix(1536, 3584, 128, 4, True)
    bias = random(1536, dtype=torch.bfloat16, seed=2)
    x = random(num_rows, 3584, dtype=torch.bfloat16)
    expected = F.linear(x.double(), exact, bias.double())
    products = [make_packed_product(weight, bias, torch.bfloat16, has_plain_copy=has) for has in (False, True)]
    for product in (*products, make_torch_product(weight, bias, x.dtype)):
        assert_close(product.run(x), expected)
        target = torch.zeros(num_rows, 1536, dtype=torch.bfloat16, device=DEVICE)
        product.add(target, x)
        assert_close(target, expected - bias.double())


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("num_prefetched", [0, 16])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_products_that_depend_on_each_other_in_a_graph(num_rows: int, num_prefetched: int) -> None:
    from seesay.kernels.packed.packed_matmul import multiply_few
    from seesay.kernels.packed.packed_tilings import FewRowTiling

    multiply, size, wide = partial(multiply_few, tiling=FewRowTiling(16, 4, 2, num_prefetched)), 3584, 5120
    up = [
        partial(multiply, packed=to_kernel(make_matrix(2 * wide, size, 128, 4, False, seed=i)[0], torch.bfloat16))
        for i in range(4)
    ]
    down = [
        partial(multiply, packed=to_kernel(make_matrix(size, wide, 128, 4, False, seed=10 + i)[0], torch.bfloat16))
        for i in range(4)
    ]
    check_in_a_graph(up * 4, down * 4, num_rows, size)

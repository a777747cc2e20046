"""Products with packed matrices, with what rides along, against float64. On a GPU the tests run as they are,
elsewhere in Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F

from seesay.device.packed_weight import PackedWeight, Packer

if TYPE_CHECKING:
    from seesay.kernels.packed_numbers import PackedTensors

HAS_TRITON = importlib.util.find_spec("triton") is not None
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = torch.cuda.is_available() and not IS_INTERPRETED
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
DTYPES = [torch.float16] if IS_INTERPRETED else [torch.float16, torch.bfloat16]
"""The interpreter multiplies matrices of bfloat16 wrongly."""
TOLERANCES = {torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Largest error ‖ours - exact‖, as a share of ‖exact‖ or of 1."""
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"silu": F.silu, "gelu": F.gelu}

pytestmark = [pytest.mark.gpu] if ON_GPU else []
runs_here = pytest.mark.skipif(not (HAS_TRITON and (ON_GPU or IS_INTERPRETED)), reason="needs a GPU or the interpreter")

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


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(DEVICE, dtype)


def make_matrix(
    num_outputs: int, num_inputs: int, group_size: int | None, bits: int, has_order: bool, *, seed: int = 0
) -> tuple[PackedWeight, torch.Tensor]:
    """Return a packed matrix of random numbers, all of which are in it, and the same in float64."""
    generator = torch.Generator().manual_seed(seed)
    size = num_inputs if group_size is None else group_size
    groups = torch.arange(num_inputs) // size
    most = 1 << bits
    numbers = torch.randint(0, most, (num_outputs, num_inputs), generator=generator)
    zeros = torch.randint(0, most + 1, (int(groups[-1]) + 1, num_outputs), generator=generator)
    scales = (torch.rand(zeros.shape, generator=generator) + 0.5).mul_(1 / most / num_inputs**0.5).half()
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


def to_kernel(weight: PackedWeight) -> PackedTensors:
    from seesay.kernels.packed_numbers import PackedTensors

    return PackedTensors(**{name: getattr(weight, name) for name in PackedTensors._fields})


def assert_close(ours: torch.Tensor, exact: torch.Tensor) -> None:
    assert ours.shape == exact.shape
    error = (ours.double() - exact).norm() / exact.norm().clamp(min=1.0)
    assert error <= TOLERANCES[ours.dtype], f"error {error:.2e}"


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
    from seesay.kernels.packed_numbers import multiply_out

    weight, _ = make_matrix(*case)
    for start, stop in ((0, case[0]), (2, 5)):
        assert torch.equal(multiply_out(to_kernel(weight), start, stop, dtype), weight.multiply_out(start, stop, dtype))


@runs_here
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("num_rows", [1, 3, 32])
@pytest.mark.parametrize(
    ("has_bias", "has_norm", "activation", "adds"),
    [
        (False, False, None, False),
        (True, True, None, False),
        (False, True, "silu", False),
        (True, False, "gelu", False),
        (True, False, None, True),
    ],
)
def test_few_rows_with_what_rides_along(
    num_rows: int,
    case: tuple[int, int, int | None, int, bool],
    dtype: torch.dtype,
    has_bias: bool,
    has_norm: bool,
    activation: str | None,
    adds: bool,
) -> None:
    from seesay.kernels.packed_matmul import multiply_few

    num_outputs, size = case[:2]
    num_sums = num_outputs * (2 if activation else 1)
    weight, exact_weight = make_matrix(num_sums, *case[1:])
    x = random(num_rows, size, dtype=dtype) + 0.5
    bias = random(num_sums, dtype=dtype, seed=2) if has_bias else None
    norm = (random(size, dtype=dtype, seed=3), 1e-6) if has_norm else None
    exact = x.double()
    if norm is not None:
        exact = exact / (exact.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * norm[0].double()
    exact = F.linear(exact, exact_weight, None if bias is None else bias.double())
    if activation is not None:
        gate, up = exact.chunk(2, -1)
        exact = ACTIVATIONS[activation](gate) * up
    wide = random(num_rows, num_outputs + 3, dtype=dtype, seed=4)
    before, target = wide.clone(), wide[:, :num_outputs]
    found = multiply_few(x, to_kernel(weight), bias, norm=norm, activation=activation, add_to=target if adds else None)
    if adds:
        assert found is target
        exact += before[:, :num_outputs].double()
        assert torch.equal(wide[:, num_outputs:], before[:, num_outputs:])
    else:
        assert torch.equal(wide, before)
    assert_close(found, exact)


@runs_here
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("num_rows", [1, 33, 150])
def test_tiles_of_rows(num_rows: int, case: tuple[int, int, int | None, int, bool], dtype: torch.dtype) -> None:
    from seesay.kernels.packed_matmul import multiply_tiles

    weight, exact_weight = make_matrix(*case)
    x = random(num_rows, case[1] + 8, dtype=dtype)  # columns behind the inputs are padding
    bias = random(case[0], dtype=dtype, seed=2) if num_rows == 33 else None
    found = multiply_tiles(x, to_kernel(weight), bias)
    assert_close(found, F.linear(x.double()[:, : case[1]], exact_weight, None if bias is None else bias.double()))


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
@pytest.mark.parametrize("num_rows", [1, 32, 256, 300])
def test_products_of_all_numbers_of_rows(num_rows: int) -> None:
    """Each way of the GPU, and that of torch."""
    from seesay.device.packed_product import make_packed_product, make_torch_product

    weight, exact = make_matrix(1536, 3584, 128, 4, True)
    bias = random(1536, dtype=torch.bfloat16, seed=2)
    x = random(num_rows, 3584, dtype=torch.bfloat16)
    expected = F.linear(x.double(), exact, bias.double())
    for product in (make_packed_product(weight, bias, torch.bfloat16), make_torch_product(weight, bias)):
        assert_close(product.run(x), expected)
        target = torch.zeros(num_rows, 1536, dtype=torch.bfloat16, device=DEVICE)
        product.add(target, x)
        assert_close(target, expected - bias.double())


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
@pytest.mark.parametrize("num_prefetched", [0, 16])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_products_that_depend_on_each_other_in_a_graph(num_rows: int, num_prefetched: int) -> None:
    """What a kernel reads before the one in front of it has ended must be nothing that that one writes."""
    from seesay.kernels.packed_matmul import multiply_few
    from seesay.kernels.packed_tilings import FewRowTiling

    tiling = FewRowTiling(16, 4, 2, num_prefetched)
    size, wide, dtype = 3584, 5120, torch.bfloat16
    up = [to_kernel(make_matrix(2 * wide, size, 128, 4, False, seed=i)[0]) for i in range(4)]
    down = [to_kernel(make_matrix(size, wide, 128, 4, False, seed=10 + i)[0]) for i in range(4)]
    norm = (random(size, dtype=dtype, seed=20).abs() + 0.5, 1e-6)
    start = random(num_rows, size, dtype=dtype, seed=21)
    stream = torch.empty_like(start)

    def run(waits: bool) -> torch.Tensor:
        stream.copy_(start)
        for first, second in zip(up * 4, down * 4, strict=True):
            inner = multiply_few(stream, first, None, norm=norm, activation="silu", tiling=tiling)
            if waits:
                torch.cuda.synchronize()
            multiply_few(inner, second, None, add_to=stream, tiling=tiling)
            if waits:
                torch.cuda.synchronize()
        return stream.clone()

    expected = run(waits=True)
    assert expected.isfinite().all() and not torch.equal(expected, start)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(waits=False)
    for _ in range(20):
        graph.replay()
        assert torch.equal(found, expected)

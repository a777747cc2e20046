"""Products of a few rows, with what rides along, against float64. On a GPU the tests run as they are, elsewhere in
Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

HAS_TRITON = importlib.util.find_spec("triton") is not None
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = torch.cuda.is_available() and not IS_INTERPRETED
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 4e-2 if IS_INTERPRETED else 1e-2}
"""Largest error ‖ours - exact‖, as a share of ‖exact‖ or of 1. The interpreter cuts bfloat16 off."""
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}  # fmt: skip
SHAPES = [(9, 5), (7, 3584), (20 if IS_INTERPRETED else 40, 4100), (33, 8)]
"""(outputs, inputs)."""

pytestmark = [pytest.mark.gpu] if ON_GPU else []
runs_here = pytest.mark.skipif(not (HAS_TRITON and (ON_GPU or IS_INTERPRETED)), reason="needs a GPU or the interpreter")


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(DEVICE, dtype)


def assert_close(ours: torch.Tensor, exact: torch.Tensor) -> None:
    assert ours.shape == exact.shape
    error = (ours.double() - exact).norm() / exact.norm().clamp(min=1.0)
    assert error <= TOLERANCES[ours.dtype], f"error {error:.2e}"


@runs_here
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("num_outputs", "size"), SHAPES)
@pytest.mark.parametrize("num_rows", [1, 3, 32])
@pytest.mark.parametrize(
    ("has_bias", "has_norm", "activation", "adds"),
    [
        (False, False, None, False),
        (True, True, None, False),
        (False, True, "silu", False),
        (True, False, "gelu", False),
        (False, False, "gelu_tanh", False),
        (True, False, None, True),
        (False, False, None, True),
    ],
)
def test_product_with_what_rides_along(
    num_rows: int,
    num_outputs: int,
    size: int,
    dtype: torch.dtype,
    has_bias: bool,
    has_norm: bool,
    activation: str | None,
    adds: bool,
) -> None:
    from seesay.kernels.few_row_matmul import multiply

    if num_rows > 1 and (dtype == torch.float32 or (IS_INTERPRETED and dtype == torch.bfloat16)):
        pytest.skip("several rows are for 16-bit types, and the interpreter multiplies matrices of bfloat16 wrongly")
    x = random(num_rows, size, dtype=dtype) + 0.5
    weight = random(num_outputs * (2 if activation else 1), size, dtype=dtype, seed=1) / size**0.5
    bias = random(len(weight), dtype=dtype, seed=2) if has_bias else None
    norm = (random(size, dtype=dtype, seed=3), 1e-6) if has_norm else None
    exact = x.double()
    if norm is not None:
        exact = exact / (exact.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * norm[0].double()
    exact = F.linear(exact, weight.double(), None if bias is None else bias.double())
    if activation is not None:
        gate, up = exact.chunk(2, -1)
        exact = ACTIVATIONS[activation](gate) * up
    wide = random(num_rows, num_outputs + 3, dtype=dtype, seed=4)
    before, target = wide.clone(), wide[:, :num_outputs]
    found = multiply(x, weight, bias, norm=norm, activation=activation, add_to=target if adds else None)
    if adds:
        assert found is target
        exact += before[:, :num_outputs].double()
        assert torch.equal(wide[:, num_outputs:], before[:, num_outputs:])
    else:
        assert torch.equal(wide, before)
    assert_close(found, exact)


@runs_here
@pytest.mark.parametrize("num_rows", [1, 3, 32])
@pytest.mark.parametrize(("num_outputs", "size"), [(7, 3584), (33, 8)])
@pytest.mark.parametrize(("has_bias", "activation", "adds"), [(True, "silu", False), (False, None, True)])
@pytest.mark.parametrize(
    ("kind", "group_size"), [(torch.float8_e4m3fn, None), (torch.int8, None), (torch.float8_e4m3fn, 128)]
)
def test_weights_of_one_byte_with_scales(
    num_rows: int,
    num_outputs: int,
    size: int,
    has_bias: bool,
    activation: str | None,
    adds: bool,
    kind: torch.dtype,
    group_size: int | None,
) -> None:
    from seesay.kernels.few_row_matmul import multiply

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


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
@pytest.mark.parametrize("num_rows", [1, 3])
def test_products_that_depend_on_each_other_in_a_graph(num_rows: int) -> None:
    """What a kernel reads before the one in front of it has ended must be nothing that that one writes."""
    from seesay.kernels.few_row_matmul import multiply

    size, wide, dtype = 3584, 5120, torch.bfloat16
    up = [random(2 * wide, size, dtype=dtype, seed=i) / size**0.5 for i in range(4)]
    down = [random(size, wide, dtype=dtype, seed=10 + i) / wide**0.5 for i in range(4)]
    norm = (random(size, dtype=dtype, seed=20).abs() + 0.5, 1e-6)
    start = random(num_rows, size, dtype=dtype, seed=21)
    stream = torch.empty_like(start)

    def run(waits: bool) -> torch.Tensor:
        stream.copy_(start)
        for first, second in zip(up * 4, down * 4, strict=True):
            inner = multiply(stream, first, None, norm=norm, activation="silu")
            if waits:
                torch.cuda.synchronize()
            multiply(inner, second, None, add_to=stream)
            if waits:
                torch.cuda.synchronize()
        return stream.clone()

    expected = run(waits=True)
    assert expected.isfinite().all() and not torch.equal(expected, start)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run(waits=False)
    for _ in range(20):
        graph.replay()
        assert torch.equal(result, expected)

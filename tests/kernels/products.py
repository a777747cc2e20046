"""What tests of products of few rows share, whatever the weight is stored as: the product with what rides along against
float64, and products that depend on each other in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton_cases
from triton_cases import IS_INTERPRETED, random

TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 4e-2 if IS_INTERPRETED else 1e-2}
"""Largest error ‖ours - exact‖, as a share of ‖exact‖ or of 1. The interpreter cuts bfloat16 off."""
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}  # fmt: skip


def multiply_gate(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    """Return the activation of a gate times up; as gpt-oss has it, of both."""
    if activation != "clamped_silu":
        return ACTIVATIONS[activation](gate) * up
    gate = gate.clamp(max=7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up.clamp(-7.0, 7.0) + 1.0)


class Along(NamedTuple):
    """What a kernel does beside the product."""

    has_bias: bool = False
    has_norm: bool = False
    activation: str | None = None
    adds: bool = False


ALONG = [
    Along(),
    Along(has_bias=True, has_norm=True),
    Along(has_norm=True, activation="silu"),
    Along(has_bias=True, activation="gelu"),
    Along(activation="gelu_tanh"),
    Along(has_bias=True, activation="clamped_silu"),
    Along(has_bias=True, adds=True),
    Along(adds=True),
]
Multiply = Callable[..., torch.Tensor]
"""(x, bias, norm=…, activation=…, add_to=…) to x Wᵀ + bias."""

assert_close = partial(triton_cases.assert_close, tolerances=TOLERANCES, least_norm=1.0)


def check_product(multiply: Multiply, weight: torch.Tensor, x: torch.Tensor, along: Along) -> None:
    """Compare the product of x [N, in] with the same of `weight` in float64, which has twice the outputs where there is
    an activation. With `adds` it goes into some columns of a wider tensor, else nothing is written there."""
    has_bias, has_norm, activation, adds = along
    dtype, num_outputs = x.dtype, len(weight) // (2 if activation else 1)
    bias = random(len(weight), dtype=dtype, seed=2) if has_bias else None
    norm = (random(x.shape[1], dtype=dtype, seed=3), 1e-6) if has_norm else None
    exact = x.double()
    if norm is not None:
        exact = exact / (exact.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * norm[0].double()
    exact = F.linear(exact, weight.double(), None if bias is None else bias.double())
    if activation is not None:
        gate, up = exact.chunk(2, -1)
        exact = multiply_gate(gate, up, activation)
    wide = random(len(x), num_outputs + 3, dtype=dtype, seed=4)
    before, target = wide.clone(), wide[:, :num_outputs]
    found = multiply(x, bias=bias, norm=norm, activation=activation, add_to=target if adds else None)
    if adds:
        assert found is target
        exact += before[:, :num_outputs].double()
        assert torch.equal(wide[:, num_outputs:], before[:, num_outputs:])
    else:
        assert torch.equal(wide, before)
    assert_close(found, exact)


def check_in_a_graph(up: Sequence[Multiply], down: Sequence[Multiply], num_rows: int, size: int) -> None:
    """Compare products that depend on each other in a CUDA graph with those that wait for each other. What a kernel
    reads before the one in front of it has ended must be nothing that that one writes."""
    norm: Any = (random(size, dtype=torch.bfloat16, seed=20).abs() + 0.5, 1e-6)
    start = random(num_rows, size, dtype=torch.bfloat16, seed=21)
    stream = torch.empty_like(start)

    def run(wait: Callable[[], None]) -> torch.Tensor:
        stream.copy_(start)
        for first, second in zip(up, down, strict=True):
            inner = first(stream, bias=None, norm=norm, activation="silu")
            wait()
            second(inner, bias=None, add_to=stream)
            wait()
        return stream.clone()

    expected = run(torch.cuda.synchronize)
    assert expected.isfinite().all() and not torch.equal(expected, start)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(lambda: None)
    for _ in range(20):
        graph.replay()
        assert torch.equal(found, expected)

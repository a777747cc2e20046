"""Every linear layer of the decoder is made here: the one place where shards, quantized weights and adapters go."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from seesay.device.linear import FusedKernel, LinearKernel, make_fused_kernel, make_linear_kernel
from seesay.llm.layers.parameter import Parameter, Part


class Linear:
    """y = x Wᵀ + b over the last axis. `parameters` are loaded, then `finish` is called once, before the first use.

    `fused` computes it for a few rows, with what comes before and behind (see `make_fused_kernel`); None where there
    is no such kernel.
    """

    __slots__ = ("_run", "bias", "fused", "parameters", "weight")

    def __init__(self, weight: Parameter, bias: Parameter | None) -> None:
        self.weight = weight
        self.bias = bias
        self.parameters = (weight,) if bias is None else (weight, bias)
        self._run: LinearKernel
        self.fused: FusedKernel | None = None

    def finish(self) -> None:
        """Bring the loaded weight into the layout that computes fastest. Its `Parameter` gives the plain one up."""
        bias = None if self.bias is None else self.bias.data
        self._run = make_linear_kernel(self.weight.data, bias)
        self.fused = make_fused_kernel(self.weight.data, bias)
        del self.weight.data

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._run(x)


def make_linear(sources: Sequence[tuple[str, int]], *, in_features: int, bias: bool) -> Linear:
    """A linear layer whose output is the concatenation of `sources`: (checkpoint module name, out features)."""
    out_features = sum(size for _, size in sources)
    weight = Parameter(
        shape=(out_features, in_features),
        parts=tuple(Part(source=f"{name}.weight", num_rows=size) for name, size in sources),
    )
    if not bias:
        return Linear(weight, None)
    parts = tuple(Part(source=f"{name}.bias", num_rows=size) for name, size in sources)
    return Linear(weight, Parameter(shape=(out_features,), parts=parts))

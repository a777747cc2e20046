"""Every linear layer of the decoder is made here: the one place where shards, quantized weights and adapters go."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from seesay.linear import LinearKernel, make_linear_kernel, make_vector_kernel
from seesay.llm.layers.parameter import Parameter, Part


class Linear:
    """y = x Wᵀ + b over the last axis. `parameters` are loaded, then `finish` is called once, before the first use.

    `vector` computes it for a single row, with what comes before and behind (see `make_vector_kernel`); None where
    there is no such kernel.
    """

    __slots__ = ("_run", "bias", "parameters", "vector", "weight")

    def __init__(self, weight: Parameter, bias: Parameter | None) -> None:
        self.weight = weight
        self.bias = bias
        self.parameters = (weight,) if bias is None else (weight, bias)
        self._run: LinearKernel
        self.vector: Callable[..., torch.Tensor] | None = None

    def finish(self) -> None:
        """Bring the loaded weight into the layout that computes fastest. Its `Parameter` gives the plain one up."""
        bias = None if self.bias is None else self.bias.data
        self._run = make_linear_kernel(self.weight.data, bias)
        self.vector = make_vector_kernel(self.weight.data, bias)
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

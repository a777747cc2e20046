"""Every linear layer of the decoder is made here: the one place where shards, quantized weights and adapters go."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from seesay.llm.layers.parameter import Parameter, Part


class Linear:
    """y = x Wᵀ + b over the last axis. `parameters` are to be loaded before the first call."""

    __slots__ = ("bias", "parameters", "weight")

    def __init__(self, weight: Parameter, bias: Parameter | None) -> None:
        self.weight = weight
        self.bias = bias
        self.parameters = (weight,) if bias is None else (weight, bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight.data, None if self.bias is None else self.bias.data)


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

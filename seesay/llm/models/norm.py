"""Norms of the residual stream, each with the product behind it, which may be fused with it."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import torch
import torch.nn.functional as F

from seesay.checkpoint.parts import Weight, plain_weight
from seesay.device.linear.linear import Linear
from seesay.device.ranks import OpenSum
from seesay.llm.models.spec import NormSpec
from seesay.llm.ops import Activation, Ops

Delta: TypeAlias = torch.Tensor | OpenSum | None
"""A summand for the residual stream, which is added before a norm."""


class Norm(Protocol):
    """The inputs of a layer's products, from the residual stream [T, hidden].

    weights: its tensors.
    """

    weights: tuple[Weight, ...]

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    def add(self, delta: Delta, residual: torch.Tensor) -> torch.Tensor:
        """Add `delta` to the residual in place, and return the norm of the sum."""
        ...

    def multiply(self, linear: Linear, delta: Delta, residual: torch.Tensor) -> torch.Tensor:
        """Add `delta` to the residual in place, and return the layer's output for the norm of the sum."""
        ...

    def multiply_few(self, linear: Linear, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output for the norm of x, which has a few rows."""
        ...

    def multiply_gated(self, linear: Linear, x: torch.Tensor, activation: Activation) -> torch.Tensor:
        """Return activation(first half) · second half of the layer's output for the norm of x, which has a few rows."""
        ...


def close(delta: Delta) -> torch.Tensor | None:
    """Return what is added, as one tensor."""
    return delta.close() if isinstance(delta, OpenSum) else delta


class RmsNorm:
    """x / sqrt(mean(x²) + eps) · weight (Zhang & Sennrich 2019)."""

    def __init__(self, name: str, size: int, spec: NormSpec, ops: Ops) -> None:
        assert spec.has_weight and not spec.has_bias
        # A weight that is stored less an offset is kept in float32: near the offset, few bits would lose most of it.
        dtype = torch.float32 if spec.offset else None
        self._weight = plain_weight(f"{name}.weight", size, offset=spec.offset, dtype=dtype)
        self._eps, self._ops = spec.eps, ops
        self.weights: tuple[Weight, ...] = (self._weight,)

    @property
    def fused(self) -> tuple[torch.Tensor, float]:
        """The weight and eps, as fused kernels take them."""
        return self._weight.data, self._eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._ops.rms_norm(x, self._weight.data, self._eps)

    def add(self, delta: Delta, residual: torch.Tensor) -> torch.Tensor:
        if delta is None:
            return self(residual)
        x, other = delta if isinstance(delta, OpenSum) else OpenSum(delta)
        return self._ops.rms_norm(x, self._weight.data, self._eps, residual=residual, other=other)

    def multiply(self, linear: Linear, delta: Delta, residual: torch.Tensor) -> torch.Tensor:
        if linear.quantized is None:
            return linear(self.add(delta, residual))
        form, multiply = linear.quantized
        weight, eps, delta = self._weight.data, self._eps, close(delta)
        if delta is None:
            return multiply(self._ops.quantize_norm(residual, None, weight, eps, form))
        return multiply(self._ops.quantize_norm(delta, residual, weight, eps, form))

    def multiply_few(self, linear: Linear, x: torch.Tensor) -> torch.Tensor:
        if linear.fused is not None and len(x) <= linear.max_fused_rows:
            return linear.fused(x, norm=self.fused, activation=None)
        return self.multiply(linear, None, x)

    def multiply_gated(self, linear: Linear, x: torch.Tensor, activation: Activation) -> torch.Tensor:
        if linear.fused is not None and len(x) <= linear.max_fused_rows:
            return linear.fused(x, norm=self.fused, activation=activation)
        return self._ops.act_and_mul(self.multiply(linear, None, x), activation)


class _Apart:
    """A norm that no kernel fuses with the product behind it."""

    weights: tuple[Weight, ...] = ()

    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def add(self, delta: Delta, residual: torch.Tensor) -> torch.Tensor:
        found = close(delta)
        return self(residual if found is None else residual.add_(found))

    def multiply(self, linear: Linear, delta: Delta, residual: torch.Tensor) -> torch.Tensor:
        return linear(self.add(delta, residual))

    def multiply_few(self, linear: Linear, x: torch.Tensor) -> torch.Tensor:
        if linear.fused is not None and len(x) <= linear.max_fused_rows:
            return linear.fused(self(x))
        return linear(self(x))

    def multiply_gated(self, linear: Linear, x: torch.Tensor, activation: Activation) -> torch.Tensor:
        if linear.fused is not None and len(x) <= linear.max_fused_rows:
            return linear.fused(self(x), activation=activation)
        return self._ops.act_and_mul(linear(self(x)), activation)


class LayerNorm(_Apart):
    """(x - mean) / sqrt(variance + eps) · weight + bias (Ba et al. 2016), with a weight and a bias or without."""

    def __init__(self, name: str, size: int, spec: NormSpec, ops: Ops) -> None:
        super().__init__(ops)
        self._shape, self._eps = (size,), spec.eps
        self._weight = plain_weight(f"{name}.weight", size, offset=spec.offset) if spec.has_weight else None
        self._bias = plain_weight(f"{name}.bias", size) if spec.has_bias else None
        self.weights = tuple(weight for weight in (self._weight, self._bias) if weight is not None)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weight = None if self._weight is None else self._weight.data
        bias = None if self._bias is None else self._bias.data
        return F.layer_norm(x, self._shape, weight, bias, self._eps)


class NoNorm(_Apart):
    """The residual stream as it is."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x


def make_norm(name: str, size: int, spec: NormSpec, ops: Ops) -> RmsNorm | LayerNorm:
    """Return a norm of `size` components whose tensors are `name`.weight and `name`.bias."""
    return (RmsNorm if spec.kind == "rms" else LayerNorm)(name, size, spec, ops)

"""The feed-forward of a layer, of several kinds: an object has its linear layers, its kernels and its forward.

A new kind is a class, its name in `FeedForwardKind`, and its case in `make_feed_forward`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F

from seesay.checkpoint.parts import Source, Weight
from seesay.device.determinism import by_groups
from seesay.device.linear.linear import Linear
from seesay.llm.models.decoder import RowSplit
from seesay.llm.models.division import Division
from seesay.llm.models.experts import Experts, SplitExperts
from seesay.llm.models.media_rows import SplitLinear
from seesay.llm.models.norm import Delta, Norm
from seesay.llm.models.residual import Joint
from seesay.llm.models.spec import FeedForwardKind, FeedForwardSpec, MediaRowsSpec
from seesay.llm.ops import Activation, Ops
from seesay.llm.ops.activations import square_relu
from seesay.llm.ops.interface import AnyActivation


class FeedForward(Protocol):
    """linears: its linear layers, by their paths in the layer. weights: all others."""

    linears: Mapping[str, Linear]
    weights: tuple[Weight, ...]

    def run(self, norm: Norm, delta: Delta, residual: torch.Tensor, rows: RowSplit | None) -> torch.Tensor:
        """Add `delta` to the residual stream [T, hidden] in place, and return the output [T, hidden] for its norm.
        rows: those of media; None where there are none."""
        ...

    def run_few(self, norm: Norm, x: torch.Tensor, joint: Joint, residual: torch.Tensor) -> None:
        """Add the output for the norm of x [T, hidden], which has a few rows, none of media, to the residual stream,
        which may be x, in place."""
        ...


class GatedFeedForward:
    """down(activation(gate(x)) · up(x)) (Shazeer 2020). Gate and up are one product. It is at `path` in the layer."""

    weights: tuple[Weight, ...] = ()

    def __init__(
        self,
        hidden_size: int,
        spec: FeedForwardSpec,
        ops: Ops,
        media: MediaRowsSpec | None,
        division: Division,
        path: str = "mlp",
    ) -> None:
        assert spec.activation != "relu2", "a gate has another activation"
        self._activation: Activation = spec.activation
        self._ops = ops
        self._gate_scale, self._size = spec.gate_scale, len(division.inner(spec.size))
        sources = self._sources(spec, division.inner(spec.size))
        self._gate_up = SplitLinear(
            f"{path}.gate_up_proj", hidden_size, bias=spec.has_bias, sources=sources, media=media
        )
        self._down = _make_down(f"{path}.down_proj", hidden_size, spec, media, division)
        self.linears: Mapping[str, Linear] = {**self._gate_up.linears, **self._down.linears}

    @staticmethod
    def _sources(spec: FeedForwardSpec, inner: range) -> list[Source]:
        size = spec.size
        if not spec.is_joined:
            return [Source(module=f"{part}_proj", num_outputs=size, picks=(inner,)) for part in ("gate", "up")]
        return [
            Source(module="gate_up_proj", num_outputs=2 * size, picks=(range(start + inner.start, start + inner.stop),))
            for start in ((size, 0) if spec.has_up_first else (0, size))
        ]

    def run(self, norm: Norm, delta: Delta, residual: torch.Tensor, rows: RowSplit | None) -> torch.Tensor:
        if rows is None and self._gate_scale == 1.0 and self._gate_up.text.gated is not None:
            return self._down(self._gate_up.text.gated(norm.add(delta, residual), self._activation), rows)
        x = self._scale(self._gate_up.multiply(norm, delta, residual, rows))
        if rows is None and self._down.text.quantized is not None:
            form, multiply = self._down.text.quantized
            return multiply(self._ops.quantize_activation(x, self._activation, form))
        return self._down(self._ops.act_and_mul(x, self._activation), rows)

    def run_few(self, norm: Norm, x: torch.Tensor, joint: Joint, residual: torch.Tensor) -> None:
        if self._gate_scale == 1.0:
            gated = norm.multiply_gated(self._gate_up.text, x, self._activation)
        else:
            gated = self._ops.act_and_mul(self._scale(norm.multiply_few(self._gate_up.text, x)), self._activation)
        joint.add_product(residual, self._down.text, gated)

    def _scale(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [T, 2 · size], gates and what they open, with its gates scaled in place."""
        if self._gate_scale != 1.0:
            x[:, : self._size].mul_(self._gate_scale)
        return x


class PlainFeedForward:
    """down(activation(up(x))). Both are at `path` in the layer."""

    weights: tuple[Weight, ...] = ()

    def __init__(
        self,
        hidden_size: int,
        spec: FeedForwardSpec,
        ops: Ops,  # noqa: ARG002
        media: MediaRowsSpec | None,
        division: Division,
        path: str = "mlp",
    ) -> None:
        self._activate = by_groups(_ACTIVATIONS[spec.activation])
        sources = [Source(module="up_proj", num_outputs=spec.size, picks=(division.inner(spec.size),))]
        self._up = SplitLinear(f"{path}.up_proj", hidden_size, bias=spec.has_bias, sources=sources, media=media)
        self._down = _make_down(f"{path}.down_proj", hidden_size, spec, media, division)
        self.linears: Mapping[str, Linear] = {**self._up.linears, **self._down.linears}

    def run(self, norm: Norm, delta: Delta, residual: torch.Tensor, rows: RowSplit | None) -> torch.Tensor:
        return self._down(self._activate(self._up.multiply(norm, delta, residual, rows)), rows)

    def run_few(self, norm: Norm, x: torch.Tensor, joint: Joint, residual: torch.Tensor) -> None:
        joint.add_product(residual, self._down.text, self._activate(norm.multiply_few(self._up.text, x)))


def _make_down(
    path: str, hidden_size: int, spec: FeedForwardSpec, media: MediaRowsSpec | None, division: Division
) -> SplitLinear:
    return SplitLinear(
        path,
        spec.size,
        hidden_size,
        bias=spec.has_bias,
        has_own_bias=division.is_first,
        inputs=division.inner(spec.size),
        media=media,
    )


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


_ACTIVATIONS: Mapping[AnyActivation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "relu2": square_relu,
}


def make_feed_forward(
    hidden_size: int, spec: FeedForwardSpec, ops: Ops, media: MediaRowsSpec | None, *, layer: str, division: Division
) -> FeedForward:
    """Return a rank's share of the feed-forward of a layer, which is at `layer` in the model, without weights. media:
    how it computes rows of media."""
    media = _find_reached(media, spec)
    match spec.kind:
        case "gated":
            return GatedFeedForward(hidden_size, spec, ops, media, division)
        case "plain":
            return PlainFeedForward(hidden_size, spec, ops, media, division)
        case "experts":
            assert spec.experts is not None
            shared = _make_shared(hidden_size, spec, ops, division)
            make = partial(Experts, hidden_size, spec, ops, layer=layer, shared=shared, division=division)
            if media is None:
                return make()
            assert media.reach == "experts" and spec.experts.media_size, "there are no experts for rows of media"
            return SplitExperts(make(), make(is_media=True), ops)


def _find_reached(media: MediaRowsSpec | None, spec: FeedForwardSpec) -> MediaRowsSpec | None:
    """Return how a feed-forward computes rows of media; None: as those of text."""
    is_reached = media is not None and (media.reach != "experts" or spec.kind == "experts")
    return media if is_reached else None


def _make_shared(hidden_size: int, spec: FeedForwardSpec, ops: Ops, division: Division) -> FeedForward | None:
    """Return what all tokens go through beside the experts, if anything."""
    assert spec.experts is not None
    if not spec.experts.shared_size:
        return None
    kind: FeedForwardKind = "gated" if spec.experts.is_gated else "plain"
    shared = replace(spec, kind=kind, size=spec.experts.shared_size, experts=None)
    make = GatedFeedForward if spec.experts.is_gated else PlainFeedForward
    return make(hidden_size, shared, ops, None, division, "mlp.shared_experts")

"""A layer of the decoder: attention and a feed-forward, one after the other or beside each other, with their norms.

Layers work on the residual stream in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from seesay.checkpoint.parts import Weight
from seesay.device.linear.linear import Linear
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.models.division import Division
from seesay.llm.models.feed_forward import make_feed_forward
from seesay.llm.models.media_layer import MediaLayer
from seesay.llm.models.media_rows import SplitLinear
from seesay.llm.models.mixer_spec import ConvolutionSpec, LatentSpec, StateSpaceSpec
from seesay.llm.models.mixers.attention import Attention, AttentionStep
from seesay.llm.models.mixers.channel_delta_net import ChannelDeltaNet
from seesay.llm.models.mixers.delta_net import DeltaNet
from seesay.llm.models.mixers.latent_attention import LatentAttention
from seesay.llm.models.mixers.short_convolution import ShortConvolution
from seesay.llm.models.mixers.state_space import StateSpace
from seesay.llm.models.norm import NoNorm, Norm, make_norm
from seesay.llm.models.residual import Joint, LayerDelta, Piece, Pieces, multiply_few, settle
from seesay.llm.models.spec import DecoderConfig
from seesay.llm.ops import Ops


class Layer(Protocol):
    """linears, by their paths in the model; norms: all other weights. kind: the properties that decide which kernels
    the layer calls."""

    linears: Mapping[str, Linear]
    norms: tuple[Weight, ...]

    @property
    def kind(self) -> tuple[object, ...]: ...

    def run(
        self,
        delta: LayerDelta,
        residual: torch.Tensor,
        cache: LayerCache,
        step: AttentionStep,
        wanted: torch.Tensor | None = None,
    ) -> tuple[LayerDelta, torch.Tensor]:
        """`delta` [T, hidden] is what the layer before adds to `residual`; returns what this layer adds, and to what.

        wanted int64 [N]: the tokens that are needed after this layer. All others only leave keys and values. Not in
        steps with rows of media.
        """
        ...

    def run_few(self, residual: torch.Tensor, cache: LayerCache, step: AttentionStep) -> None:
        """As `run` for a few tokens, none of media, whose residual stream [T, hidden] is changed in place: norms,
        the activation and the sums are fused into the products of layers that have kernels for so many rows."""
        ...


class _Parts:
    """The parts that layers of all arrangements have."""

    def __init__(self, config: DecoderConfig, index: int, ops: Ops, division: Division) -> None:
        spec, name = config.layers[index], f"layers.{index}"
        self._attention = make_mixer(config, index, ops, division)
        self._feed_forward = make_feed_forward(
            config.hidden_size, spec.feed_forward, ops, config.media_rows, layer=name, division=division
        )
        linears = {**self._attention.linears, **self._feed_forward.linears}
        self.linears: Mapping[str, Linear] = _name_all(linears, index)
        self._spec, self._ops, self._none = spec, ops, NoNorm(ops)
        self._name, self._config = name, config
        self.norms: tuple[Weight, ...] = (*self._attention.norms, *self._feed_forward.weights)

    @property
    def kind(self) -> tuple[object, ...]:
        feed_forward = self._spec.feed_forward.kind
        return (
            self._attention.window,
            self._spec.beside,
            feed_forward,
            *(linear.method.name for linear in self.linears.values()),
        )

    def _make_norm(self, name: str, *, exists: bool = True) -> Norm | None:
        if not exists:
            return None
        norm = make_norm(f"{self._name}.{name}", self._config.hidden_size, self._config.norm, self._ops)
        self.norms += norm.weights
        return norm


class SequentialLayer(_Parts):
    """Attention, then the feed-forward of the sum."""

    def __init__(self, config: DecoderConfig, index: int, ops: Ops, division: Division) -> None:
        super().__init__(config, index, ops, division)
        placement = self._spec.norms
        is_before, is_behind = placement != "behind", placement != "before"
        self._input_norm = self._make_norm("input_layernorm", exists=is_before) or self._none
        attended = self._make_norm("post_attention_layernorm", exists=is_behind)
        self._inner_norm = self._make_norm(self._spec.feed_forward_norm, exists=is_before) or self._none
        made = self._make_norm("post_feedforward_layernorm", exists=is_behind)
        scale = config.residual_scale
        self._attended = Joint(attended, scale, division.ranks)
        self._made = Joint(made, scale * self._spec.feed_forward.output_scale, division.ranks)

    def run(
        self,
        delta: LayerDelta,
        residual: torch.Tensor,
        cache: LayerCache,
        step: AttentionStep,
        wanted: torch.Tensor | None = None,
    ) -> tuple[LayerDelta, torch.Tensor]:
        attention = self._attention
        x = attention.attend(self._project(delta, residual, step), cache, step)
        if wanted is not None:
            x, residual = x.index_select(0, wanted), residual.index_select(0, wanted)
        if step.rows is None and not step.is_adapted and self._attended.has_pieces(len(x)):
            return self._run_in_pieces(x, residual), residual
        added = self._attended.prepare(attention.out(x, step.rows))
        made = self._feed_forward.run(self._inner_norm, added, residual, step.rows)
        return self._made.prepare(made), residual

    def _project(self, delta: LayerDelta, residual: torch.Tensor, step: AttentionStep) -> torch.Tensor:
        """Add `delta` to the residual stream, and return attention's input."""
        qkv, norm = self._attention.qkv, self._input_norm
        if not isinstance(delta, Pieces):
            return qkv.multiply(norm, delta, residual, step.rows)
        return torch.cat([qkv.multiply(norm, found, piece, step.rows) for found, piece in delta.waited()])

    def _run_in_pieces(self, x: torch.Tensor, residual: torch.Tensor) -> Pieces:
        """Compute two pieces of the tokens in turn behind attention, each while the ranks sum up the other's output."""
        attended = [self._attended.begin(self._attention.out(piece, None)) for piece in x.chunk(2)]
        return Pieces(
            Piece(piece, self._made.begin(self._feed_forward.run(self._inner_norm, finish(), piece, None)))
            for finish, piece in zip(attended, residual.chunk(2), strict=True)
        )

    def run_few(self, residual: torch.Tensor, cache: LayerCache, step: AttentionStep) -> None:
        attention = self._attention
        x = attention.attend(self._input_norm.multiply_few(attention.qkv.text, residual), cache, step)
        self._attended.add_product(residual, attention.out.text, x)
        self._feed_forward.run_few(self._inner_norm, residual, self._made, residual)


class HybridLayer(SequentialLayer):
    """Attention and a state space beside each other, then the feed-forward of the sum."""

    def __init__(self, config: DecoderConfig, index: int, ops: Ops, division: Division) -> None:
        super().__init__(config, index, ops, division)
        assert self._spec.beside is not None
        self._beside = StateSpace(config, index, self._spec.beside, division)
        self.linears = {**self.linears, **_name_all(self._beside.linears, index)}
        self.norms = (*self.norms, *self._beside.norms)

    def run(
        self,
        delta: LayerDelta,
        residual: torch.Tensor,
        cache: LayerCache,
        step: AttentionStep,
        wanted: torch.Tensor | None = None,
    ) -> tuple[LayerDelta, torch.Tensor]:
        normed = self._input_norm.add(settle(delta), residual)
        x, y = (part.attend(part.qkv(normed, step.rows), cache, step) for part in (self._attention, self._beside))
        if wanted is not None:
            x, y, residual = (part.index_select(0, wanted) for part in (x, y, residual))
        added = self._add_up(self._attention.out(x, step.rows), self._beside.out(y, step.rows))
        return self._made.prepare(self._feed_forward.run(self._inner_norm, added, residual, step.rows)), residual

    def run_few(self, residual: torch.Tensor, cache: LayerCache, step: AttentionStep) -> None:
        normed, parts = self._input_norm(residual), (self._attention, self._beside)
        mixed = [part.attend(self._none.multiply_few(part.qkv.text, normed), cache, step) for part in parts]
        outputs = [multiply_few(part.out.text, x) for part, x in zip(parts, mixed, strict=True)]
        residual.add_(self._add_up(*outputs))
        self._feed_forward.run_few(self._inner_norm, residual, self._made, residual)

    def _add_up(self, attended: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Return what is added to the residual stream for the outputs of both; the first one is changed."""
        first, second = self._spec.shares
        return self._attended.prepare(attended.mul_(first).add_(other, alpha=second))


class MixerLayer:
    """Attention or what is in its place, alone."""

    def __init__(self, config: DecoderConfig, index: int, ops: Ops, division: Division) -> None:
        self._mixer = make_mixer(config, index, ops, division)
        self._norm = make_norm(f"layers.{index}.input_layernorm", config.hidden_size, config.norm, ops)
        self._joint = Joint(None, config.residual_scale, division.ranks)
        self.linears: Mapping[str, Linear] = _name_all(self._mixer.linears, index)
        self.norms: tuple[Weight, ...] = (*self._norm.weights, *self._mixer.norms)

    @property
    def kind(self) -> tuple[object, ...]:
        return ("mixer", self._mixer.window, *(linear.method.name for linear in self.linears.values()))

    def run(
        self,
        delta: LayerDelta,
        residual: torch.Tensor,
        cache: LayerCache,
        step: AttentionStep,
        wanted: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = self._mixer.attend(self._mixer.qkv.multiply(self._norm, settle(delta), residual, step.rows), cache, step)
        if wanted is not None:
            x, residual = x.index_select(0, wanted), residual.index_select(0, wanted)
        return self._joint.prepare(self._mixer.out(x, step.rows)), residual

    def run_few(self, residual: torch.Tensor, cache: LayerCache, step: AttentionStep) -> None:
        x = self._mixer.attend(self._norm.multiply_few(self._mixer.qkv.text, residual), cache, step)
        self._joint.add_product(residual, self._mixer.out.text, x)


class FeedForwardLayer:
    """A feed-forward alone, which keeps nothing."""

    def __init__(self, config: DecoderConfig, index: int, ops: Ops, division: Division) -> None:
        spec, name = config.layers[index].feed_forward, f"layers.{index}"
        self._feed_forward = make_feed_forward(
            config.hidden_size, spec, ops, config.media_rows, layer=name, division=division
        )
        self._norm = make_norm(f"{name}.input_layernorm", config.hidden_size, config.norm, ops)
        self._joint = Joint(None, config.residual_scale * spec.output_scale, division.ranks)
        self._kind = spec.kind
        self.linears: Mapping[str, Linear] = _name_all(self._feed_forward.linears, index)
        self.norms: tuple[Weight, ...] = (*self._norm.weights, *self._feed_forward.weights)

    @property
    def kind(self) -> tuple[object, ...]:
        return (self._kind, *(linear.method.name for linear in self.linears.values()))

    def run(
        self,
        delta: LayerDelta,
        residual: torch.Tensor,
        cache: LayerCache,
        step: AttentionStep,
        wanted: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        del cache
        added = settle(delta)
        if wanted is not None:
            added = None if added is None else added.index_select(0, wanted)
            residual = residual.index_select(0, wanted)
        return self._joint.prepare(self._feed_forward.run(self._norm, added, residual, step.rows)), residual

    def run_few(self, residual: torch.Tensor, cache: LayerCache, step: AttentionStep) -> None:
        del cache, step
        self._feed_forward.run_few(self._norm, residual, self._joint, residual)


def _name_all(linears: Mapping[str, Linear], index: int) -> dict[str, Linear]:
    """Return the linear layers of layer `index` by their paths in the model."""
    return {f"layers.{index}.{path}": linear for path, linear in linears.items()}


_PLAIN = Joint(None, 1.0)


class ParallelLayer(_Parts):
    """Attention and the feed-forward of the same residual stream (Wang & Komatsuzaki 2021), from one norm or two."""

    def __init__(self, config: DecoderConfig, index: int, ops: Ops, division: Division) -> None:
        super().__init__(config, index, ops, division)
        norm = self._make_norm("input_layernorm")
        assert norm is not None
        self._input_norm: Norm = norm
        self._own_norm = self._make_norm(self._spec.feed_forward_norm, exists=self._spec.norms == "parallel_pair")
        self._joint = Joint(None, config.residual_scale, division.ranks)

    def run(
        self,
        delta: LayerDelta,
        residual: torch.Tensor,
        cache: LayerCache,
        step: AttentionStep,
        wanted: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        attention = self._attention
        normed = self._input_norm.add(settle(delta), residual)
        x = attention.attend(attention.qkv(normed, step.rows), cache, step)
        if wanted is not None:
            x, residual = x.index_select(0, wanted), residual.index_select(0, wanted)
            normed = normed.index_select(0, wanted)
        made = self._feed_forward.run(self._none, None, self._own_input(normed, residual), step.rows)
        return self._joint.prepare(attention.out(x, step.rows).add_(made)), residual

    def run_few(self, residual: torch.Tensor, cache: LayerCache, step: AttentionStep) -> None:
        attention = self._attention
        normed = self._input_norm(residual)
        own = self._own_input(normed, residual)
        x = attention.attend(self._none.multiply_few(attention.qkv.text, normed), cache, step)
        if self._joint.is_divided:
            both = multiply_few(attention.out.text, x)
            self._feed_forward.run_few(self._none, own, _PLAIN, both)
            residual.add_(self._joint.prepare(both))
            return
        self._joint.add_product(residual, attention.out.text, x)
        self._feed_forward.run_few(self._none, own, self._joint, residual)

    def _own_input(self, normed: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Return what the feed-forward takes."""
        return normed if self._own_norm is None else self._own_norm(residual)


class Mixer(Protocol):
    """What takes something of other tokens. qkv: what makes its inputs of each token. out: what takes its outputs.
    window: what decides which kernels it calls. linears, norms: see `Layer`, by paths in the layer."""

    qkv: SplitLinear
    out: SplitLinear
    linears: Mapping[str, Linear]
    norms: tuple[Weight, ...]

    @property
    def window(self) -> object: ...

    def attend(self, qkv: torch.Tensor, cache: LayerCache, step: AttentionStep) -> torch.Tensor:
        """Return the outputs for `self.qkv`'s output [T, …], which may be changed."""
        ...


def make_mixer(config: DecoderConfig, index: int, ops: Ops, division: Division) -> Mixer:
    """Return a rank's share of what layer `index` has in the place of attention, or of its attention."""
    spec = config.layers[index].mixer
    if isinstance(spec, LatentSpec):
        return LatentAttention(config, index, spec, ops, division)
    if isinstance(spec, ConvolutionSpec):
        return ShortConvolution(config, index, spec, division)
    if isinstance(spec, StateSpaceSpec):
        return StateSpace(config, index, spec, division)
    if spec is None:
        return Attention(config, index, ops, division)
    return (ChannelDeltaNet if spec.rank else DeltaNet)(config, index, spec, division)


def make_layer(config: DecoderConfig, index: int, ops: Ops, division: Division) -> Layer:
    """Return a rank's share of layer `index`, without weights."""
    if config.layers[index].attends_media:
        return MediaLayer(config, index, ops, division)
    if (half := config.layers[index].half) is not None:
        return (MixerLayer if half == "mixer" else FeedForwardLayer)(config, index, ops, division)
    if config.layers[index].beside is not None:
        return HybridLayer(config, index, ops, division)
    is_parallel = config.layers[index].norms in ("parallel", "parallel_pair")
    return (ParallelLayer if is_parallel else SequentialLayer)(config, index, ops, division)

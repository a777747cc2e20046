"""Grouped-query attention of a layer over its paged KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from seesay.checkpoint.parts import Axis, Part, Source, Weight
from seesay.device.determinism import by_groups
from seesay.device.linear.linear import Linear
from seesay.device.ranks import Ranks
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.models.decoder import MediaAttention, RowSplit
from seesay.llm.models.division import Division
from seesay.llm.models.media_rows import SplitLinear
from seesay.llm.models.norm import LayerNorm, RmsNorm, make_norm
from seesay.llm.models.spec import DecoderConfig
from seesay.llm.ops import Ops
from seesay.llm.ops.state_plan import StatePlan


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """Values that all layers share in a step. turns: (cos, sin) of each rotary embedding. query_scale [T, 1, 1]: a
    factor of each token's query; None is 1; grown_scale: that of layers whose queries grow. rows: those of media; None
    where there are none. slopes: see `Ops.attend`. is_adapted: whether adapters change some tokens, which are counted
    among all of the step. media: what tokens attend to beside the text, if any does. states: how tokens lie for layers
    with a state; None without any.
    """

    turns: Sequence[tuple[torch.Tensor, torch.Tensor]]
    slots: torch.Tensor
    plan: Any
    faults: torch.Tensor
    query_scale: torch.Tensor | None = None
    grown_scale: torch.Tensor | None = None
    rows: RowSplit | None = None
    slopes: torch.Tensor | None = None
    is_adapted: bool = False
    media: MediaAttention | None = None
    states: StatePlan | None = None


class Attention:
    """Attention of a rank's heads. qkv: what makes queries, keys and values. out: what takes the attended values.
    `linears` are these two by their paths in the layer; `norms` are the other weights: those of norms of queries and
    keys, and sinks."""

    def __init__(self, config: DecoderConfig, index: int, ops: Ops, division: Division) -> None:
        layer, heads, kv_heads = config.layers[index], division.heads(config), division.kv_heads(config)
        self._ops = ops
        self._num_heads, self._num_kv_heads, self._head_dim = len(heads), len(kv_heads), config.head_dim
        self._scale, self._soft_cap, self._limit = config.attention_scale, config.attention_soft_cap, config.qkv_limit
        self._has_gate, self._sigmoid = config.has_output_gate, by_groups(torch.sigmoid)
        self._rotary, self.window, self._grows = layer.rotary, layer.window, layer.grows_queries
        media = config.media_rows if config.media_rows is not None and config.media_rows.reach == "layer" else None
        self.qkv = SplitLinear(
            "self_attn.qkv_proj",
            config.attended_size or config.hidden_size,
            bias=config.qkv_bias,
            sources=_qkv_sources(config, heads, kv_heads),
            media=None if media is None else media.for_qkv,
            media_bias=media is not None and media.qkv_bias,
        )
        self.out = SplitLinear(
            "self_attn.o_proj",
            config.num_heads * config.head_dim,
            config.hidden_size,
            bias=config.output_bias,
            has_own_bias=division.is_first,
            inputs=range(heads.start * config.head_dim, heads.stop * config.head_dim),
            media=media,
        )
        self.linears: Mapping[str, Linear] = {**self.qkv.linears, **self.out.linears}
        self._fused_norms: tuple[RmsNorm, RmsNorm] | None = None
        self._norms: tuple[_QKNorm, ...] = _make_qk_norms(config, index, ops, division)
        self.norms = tuple(weight for norm in self._norms for weight in norm.weights)
        self._sinks = _make_sinks(config, f"layers.{index}", heads) if config.has_sinks else None
        if self._sinks is not None:
            self.norms = (*self.norms, self._sinks)
        if config.qk_norm == "head" and config.norm.kind == "rms":
            query, key = self._norms
            assert isinstance(query, RmsNorm) and isinstance(key, RmsNorm)
            self._fused_norms, self._norms = (query, key), ()

    def attend(self, qkv: torch.Tensor, cache: LayerCache, step: AttentionStep) -> torch.Tensor:
        """Return the attended values [T, H · D] of `self.qkv`'s output [T, (H + 2 G) · D], which is changed."""
        if self._limit is not None:
            qkv.clamp_(-self._limit, self._limit)
        if self._norms:
            for norm, part in zip(self._norms, self._split(qkv), strict=True):
                part.copy_(norm(part))
        qkv = qkv.view(len(qkv), -1, self._head_dim)
        gate = None
        if self._has_gate:
            qkv, gate = qkv[:, : -self._num_heads], qkv[:, -self._num_heads :]
        norms = None
        if self._fused_norms is not None:
            (query, eps), (key, _) = (norm.fused for norm in self._fused_norms)
            norms = query, key, eps
        cos, sin = step.turns[self._rotary]
        self._ops.rotate_and_write(qkv, cos, sin, cache, step.slots, norms, step.faults)
        query = qkv[:, : self._num_heads]
        self._scale_queries(query, step)
        output = self._ops.attend(
            query,
            cache,
            step.plan,
            scale=self._scale,
            window=self.window,
            soft_cap=self._soft_cap,
            sinks=None if self._sinks is None else self._sinks.data,
            slopes=step.slopes,
        )
        return self._open_gates(output, gate).reshape(len(qkv), -1)

    def _scale_queries(self, query: torch.Tensor, step: AttentionStep) -> None:
        """Multiply queries [T, H, D] by the factors of their tokens, if they have any."""
        scale = step.grown_scale if self._grows else step.query_scale
        if scale is not None:
            query.mul_(scale)

    def _open_gates(self, output: torch.Tensor, gates: torch.Tensor | None) -> torch.Tensor:
        """Return the attended values [T, H, D] as far as their gates are open."""
        return output if gates is None else output * self._sigmoid(gates)

    def _split(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries [T, H · D] and keys [T, G · D], views."""
        end = self._num_heads * self._head_dim
        return qkv[:, :end], qkv[:, end : end + self._num_kv_heads * self._head_dim]


class _HeadNorm:
    """A layer norm of each of the heads `heads`, with a weight of its own, in the order in which components lie
    here."""

    def __init__(self, name: str, heads: range, num_heads: int, config: DecoderConfig) -> None:
        order = _order_in_head(config)
        axes = (Axis(dim=0, size=num_heads, picks=(heads,)), Axis(dim=1, size=config.head_dim, picks=order))
        self._weight = Weight(parts=(Part(tensor=f"{name}.weight", axes=axes),))
        self._eps = config.norm.eps
        self.weights = (self._weight,)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weight = self._weight.data.float()
        normed = F.layer_norm(x.float().view(-1, *weight.shape), weight.shape[1:], eps=self._eps)
        return (normed * weight).flatten(1).to(x.dtype)


class _PlainHeadNorm:
    """An RMS norm of each head, without a weight."""

    weights: tuple[Weight, ...] = ()

    def __init__(self, config: DecoderConfig) -> None:
        self._size, self._eps = config.head_dim, config.norm.eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float().view(len(x), -1, self._size)
        return (wide * (wide.square().mean(dim=-1, keepdim=True) + self._eps).rsqrt()).flatten(1).to(x.dtype)


class _DividedNorm:
    """An RMS norm over the heads of all ranks, of which `num_holders` have the same ones each."""

    def __init__(
        self, name: str, heads: range, num_heads: int, config: DecoderConfig, ranks: Ranks, num_holders: int
    ) -> None:
        assert config.norm.kind == "rms" and not config.norm.offset
        size = config.head_dim
        axis = Axis(dim=0, size=num_heads * size, picks=(range(heads.start * size, heads.stop * size),))
        self._weight = Weight(parts=(Part(tensor=f"{name}.weight", axes=(axis,)),))
        self._eps, self._ranks, self._count = config.norm.eps, ranks, num_heads * size * num_holders
        self.weights = (self._weight,)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        squares = self._ranks.sum(wide.square().sum(dim=-1, keepdim=True)) if len(x) else wide[:, :1]
        return (wide * (squares / self._count + self._eps).rsqrt() * self._weight.data).to(x.dtype)


_QKNorm = RmsNorm | LayerNorm | _HeadNorm | _PlainHeadNorm | _DividedNorm


def _make_qk_norms(config: DecoderConfig, index: int, ops: Ops, division: Division) -> tuple[_QKNorm, ...]:
    """Return the norms of a rank's queries and keys; none without them."""
    if config.qk_norm is None or not config.layers[index].norms_qk:
        return ()
    if config.qk_norm == "plain":
        return _PlainHeadNorm(config), _PlainHeadNorm(config)
    found: list[_QKNorm] = []
    for name, heads, count, num_holders in (
        ("q_norm", division.heads(config), config.num_heads, 1),
        ("k_norm", division.kv_heads(config), config.num_kv_heads, division.num_holders(config)),
    ):
        path = f"layers.{index}.self_attn.{name}"
        if config.qk_norm == "per_head":
            found.append(_HeadNorm(path, heads, count, config))
        elif config.qk_norm == "head":
            found.append(make_norm(path, config.head_dim, config.norm, ops))
        elif division.ranks is None:
            found.append(make_norm(path, count * config.head_dim, config.norm, ops))
        else:
            found.append(_DividedNorm(path, heads, count, config, division.ranks, num_holders))
    return tuple(found)


def _make_sinks(config: DecoderConfig, layer: str, heads: range) -> Weight:
    """Return the sinks of these heads, see `Ops.attend`."""
    axis = Axis(dim=0, size=config.num_heads, picks=(heads,))
    return Weight(parts=(Part(tensor=f"{layer}.self_attn.sinks", axes=(axis,)),))


def _qkv_sources(config: DecoderConfig, heads: range, kv_heads: range) -> list[Source]:
    """Return the outputs of stored modules that are queries of `heads`, and keys and values of `kv_heads`."""
    size, num_groups = config.head_dim, config.num_kv_heads
    per_group = config.num_heads // num_groups
    counts = {"q": config.num_heads, "k": num_groups, "v": num_groups}
    order = _order_in_head(config)
    orders = {"q": order, "k": order, "v": (range(size),)}
    wanted = {"q": heads, "k": kv_heads, "v": kv_heads}
    if config.qkv == "separate":
        sources = [
            Source(module=f"{name}_proj", num_outputs=count * size, picks=_pick(wanted[name], size, orders[name]))
            for name, count in counts.items()
        ]
        return _with_gates(sources, heads, config) if config.has_output_gate else sources
    # the stored place of the first head of a group, or of all, and of each group behind it
    if config.qkv == "joined":
        firsts, steps = {"q": 0, "k": config.num_heads, "v": config.num_heads + num_groups}, (per_group, 1)
    else:
        firsts, steps = {"q": 0, "k": per_group, "v": per_group + 1}, (per_group + 2, per_group + 2)
    places = {
        "q": [firsts["q"] + head // per_group * steps[0] + head % per_group for head in heads],
        "k": [firsts["k"] + head * steps[1] for head in kv_heads],
        "v": [firsts["v"] + head * steps[1] for head in kv_heads],
    }
    num_outputs = sum(counts.values()) * size
    return [
        Source(module="qkv_proj", num_outputs=num_outputs, picks=_pick(places[name], size, orders[name]))
        for name in places
    ]


def _with_gates(sources: list[Source], heads: range, config: DecoderConfig) -> list[Source]:
    """Return the sources where each stored head has its gate behind its query: gates come last."""
    whole, size = range(config.head_dim), config.head_dim
    queries, gates = (
        Source(
            module="q_proj",
            num_outputs=2 * config.num_heads * size,
            picks=_pick([2 * head + place for head in heads], size, order),
        )
        for place, order in ((0, _order_in_head(config)), (1, (whole,)))
    )
    return [queries, *sources[1:], gates]


def _order_in_head(config: DecoderConfig) -> tuple[range, ...]:
    """Return the stored components of a query or key head in the order in which they are rotated here: what is turned
    together lies half of the rotated components apart."""
    if not config.turns_neighbours:
        return (range(config.head_dim),)
    dim = config.rotaries[0].dim
    rest = (range(dim, config.head_dim),) if dim < config.head_dim else ()
    return (range(0, dim, 2), range(1, dim, 2), *rest)


def _pick(heads: Sequence[int], size: int, order: Sequence[range]) -> tuple[range, ...]:
    """Return the outputs of stored heads, in this order of their components; what lies together is one range."""
    picks: list[range] = []
    for head in heads:
        for part in order:
            start, stop = head * size + part.start, head * size + part.stop
            if part.step == 1 and picks and picks[-1].step == 1 and picks[-1].stop == start:
                start = picks.pop().start
            picks.append(range(start, stop, part.step))
    return tuple(picks)

"""Grouped-query attention of a layer over its paged KV cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from seesay.checkpoint.parts import Axis, Part, Source, Weight
from seesay.device.linear.linear import Linear
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.models.decoder import RowSplit
from seesay.llm.models.media_rows import SplitLinear
from seesay.llm.models.norm import LayerNorm, RmsNorm, make_norm
from seesay.llm.models.spec import DecoderConfig
from seesay.llm.ops import Ops


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """Values that all layers share in a step. turns: (cos, sin) of each rotary embedding. query_scale [T, 1, 1]: a
    factor of each token's query; None is 1. rows: those of media; None where there are none. slopes: see `Ops.attend`.
    """

    turns: Sequence[tuple[torch.Tensor, torch.Tensor]]
    slots: torch.Tensor
    plan: Any
    faults: torch.Tensor
    query_scale: torch.Tensor | None = None
    rows: RowSplit | None = None
    slopes: torch.Tensor | None = None


class Attention:
    """qkv: what makes queries, keys and values. out: what takes the attended values. `linears` are these two by their
    paths in the layer; `norms` are the weights of norms of queries and keys."""

    def __init__(self, config: DecoderConfig, index: int, ops: Ops) -> None:
        layer = config.layers[index]
        self._ops = ops
        self._num_heads, self._num_kv_heads, self._head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self._scale, self._soft_cap, self._limit = config.attention_scale, config.attention_soft_cap, config.qkv_limit
        self._rotary, self.window = layer.rotary, layer.window
        media = config.media_rows if config.media_rows is not None and config.media_rows.in_attention else None
        self.qkv = SplitLinear(
            "self_attn.qkv_proj",
            config.hidden_size,
            bias=config.qkv_bias,
            sources=_qkv_sources(config),
            media=None if media is None else media.for_qkv,
            media_bias=media is not None and media.qkv_bias,
        )
        self.out = SplitLinear(
            "self_attn.o_proj",
            config.num_heads * config.head_dim,
            config.hidden_size,
            bias=config.output_bias,
            media=media,
        )
        self.linears: Mapping[str, Linear] = {**self.qkv.linears, **self.out.linears}
        self._fused_norms: tuple[RmsNorm, RmsNorm] | None = None
        self._norms: tuple[RmsNorm | LayerNorm | _HeadNorm, ...] = _make_qk_norms(config, f"layers.{index}", ops)
        self.norms = tuple(weight for norm in self._norms for weight in norm.weights)
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
        norms = None
        if self._fused_norms is not None:
            (query, eps), (key, _) = (norm.fused for norm in self._fused_norms)
            norms = query, key, eps
        cos, sin = step.turns[self._rotary]
        self._ops.rotate_and_write(qkv, cos, sin, cache, step.slots, norms, step.faults)
        query = qkv[:, : self._num_heads]
        if step.query_scale is not None:
            query.mul_(step.query_scale)
        output = self._ops.attend(
            query,
            cache,
            step.plan,
            scale=self._scale,
            window=self.window,
            soft_cap=self._soft_cap,
            slopes=step.slopes,
        )
        return output.reshape(len(qkv), -1)

    def _split(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries [T, H · D] and keys [T, G · D], views."""
        end = self._num_heads * self._head_dim
        return qkv[:, :end], qkv[:, end : end + self._num_kv_heads * self._head_dim]


class _HeadNorm:
    """A layer norm of each head, with a weight of its own, in the order in which components lie here."""

    def __init__(self, name: str, num_heads: int, config: DecoderConfig) -> None:
        axes = (Axis(dim=0, size=num_heads), Axis(dim=1, size=config.head_dim, picks=_order_in_head(config)))
        self._weight = Weight(parts=(Part(tensor=f"{name}.weight", axes=axes),))
        self._eps = config.norm.eps
        self.weights = (self._weight,)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weight = self._weight.data.float()
        normed = F.layer_norm(x.float().view(-1, *weight.shape), weight.shape[1:], eps=self._eps)
        return (normed * weight).flatten(1).to(x.dtype)


def _make_qk_norms(config: DecoderConfig, layer: str, ops: Ops) -> tuple[RmsNorm | LayerNorm | _HeadNorm, ...]:
    """Return the norms of queries and of keys; none without them."""
    names = ((f"{layer}.self_attn.q_norm", config.num_heads), (f"{layer}.self_attn.k_norm", config.num_kv_heads))
    match config.qk_norm:
        case None:
            return ()
        case "per_head":
            return tuple(_HeadNorm(name, count, config) for name, count in names)
        case "head":
            return tuple(make_norm(name, config.head_dim, config.norm, ops) for name, _ in names)
        case "whole":
            return tuple(make_norm(name, count * config.head_dim, config.norm, ops) for name, count in names)


def _qkv_sources(config: DecoderConfig) -> list[Source]:
    """Return the outputs of stored modules that are queries, keys and values."""
    size, num_groups = config.head_dim, config.num_kv_heads
    per_group = config.num_heads // num_groups
    counts = {"q": config.num_heads, "k": num_groups, "v": num_groups}
    order = _order_in_head(config)
    orders = {"q": order, "k": order, "v": (range(size),)}
    if config.qkv == "separate":
        return [
            Source(module=f"{name}_proj", num_outputs=count * size, picks=_pick(range(count), size, orders[name]))
            for name, count in counts.items()
        ]
    if config.qkv == "joined":
        heads = {"q": range(counts["q"]), "k": range(counts["q"], counts["q"] + num_groups)}
        heads["v"] = range(heads["k"].stop, heads["k"].stop + num_groups)
        found: Mapping[str, Iterable[int]] = heads
    else:
        firsts = [group * (per_group + 2) for group in range(num_groups)]
        found = {
            "q": [first + head for first in firsts for head in range(per_group)],
            "k": [first + per_group for first in firsts],
            "v": [first + per_group + 1 for first in firsts],
        }
    num_outputs = sum(counts.values()) * size
    return [
        Source(module="qkv_proj", num_outputs=num_outputs, picks=_pick(heads, size, orders[name]))
        for name, heads in found.items()
    ]


def _order_in_head(config: DecoderConfig) -> tuple[range, ...]:
    """Return the stored components of a query or key head in the order in which they are rotated here: what is turned
    together lies half of the rotated components apart."""
    if not config.turns_neighbours:
        return (range(config.head_dim),)
    dim = config.rotaries[0].dim
    rest = (range(dim, config.head_dim),) if dim < config.head_dim else ()
    return (range(0, dim, 2), range(1, dim, 2), *rest)


def _pick(heads: Iterable[int], size: int, order: Sequence[range]) -> tuple[range, ...]:
    """Return the outputs of stored heads, in this order of their components; what lies together is one range."""
    picks: list[range] = []
    for head in heads:
        for part in order:
            start, stop = head * size + part.start, head * size + part.stop
            if part.step == 1 and picks and picks[-1].step == 1 and picks[-1].stop == start:
                start = picks.pop().start
            picks.append(range(start, stop, part.step))
    return tuple(picks)

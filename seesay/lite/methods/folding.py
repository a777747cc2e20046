"""Scales that move between a layer's inputs and what makes them, so that it computes the same: y = (W s) (x / s).

Which pairs exist follows from the layer: a norm before q, k, v and before the feed-forward, unless both share it; v
before the output projection (attention mixes values of one head, channel by channel); up before down where a gate
multiplies channel by channel. In a mixture of experts, the norm's output goes to the router, too, and to what all
tokens go through; no scales move between up and down of an expert.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seesay.lite.methods.plain_layer import (
    DOWN,
    EXPERTS,
    GATE_UP,
    INPUT_NORM,
    OUT,
    QKV,
    ROUTER,
    SHARED_GATE,
    SHARED_GATE_UP,
    UP,
    PlainLayer,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """`target`, whose input channels are scaled, and what is divided: the norm `norm`, or else outputs `rows` of linear
    layer `maker`.

    followers: other linear layers that take the same input; their channels are scaled, too. inputs: that whose inputs
    are those of all tokens, if it is not the target.
    heads, repeats, size: channels of the target are [heads, repeats, size], and all repeats come from one output, as
    where query heads share values.
    """

    target: str
    norm: str = ""
    maker: str = ""
    rows: range = range(0)
    followers: tuple[str, ...] = ()
    inputs: str = ""
    heads: int = 1
    repeats: int = 1
    size: int

    def shared(self, channels: Tensor) -> Tensor:
        """Return the mean over repeats of a value for each input channel of the target: [heads · size]."""
        return channels.view(self.heads, self.repeats, self.size).mean(1).flatten()

    def takers(self, layer: PlainLayer) -> list[str]:
        """Return the names of the pieces whose input channels are scaled."""
        return [piece for name in (self.target, *self.followers) for piece in layer.name_pieces(name)]

    def spread(self, scales: Tensor) -> Tensor:
        """Return scales [heads · size] for each input channel of the target."""
        return scales.view(self.heads, 1, self.size).expand(-1, self.repeats, -1).flatten()


def norm_pairs(layer: PlainLayer) -> tuple[Pair, ...]:
    """Return the pairs of a norm and the one linear layer that takes its output."""
    config = layer.source.config
    spec = config.layers[layer.index]
    if spec.norms not in ("before", "around", "parallel_pair"):
        return ()
    kind, size = spec.feed_forward.kind, config.hidden_size
    before = Pair(target=QKV, norm=INPUT_NORM, size=size)
    inner = Pair(target=GATE_UP if kind == "gated" else UP, norm=spec.feed_forward_norm, size=size)
    if kind == "experts":
        others = tuple(name for name in (ROUTER, SHARED_GATE, SHARED_GATE_UP) if name in layer.linears)
        inner = replace(inner, target=EXPERTS, followers=others, inputs=ROUTER)
    return tuple(pair for pair in (before, inner) if pair.norm in layer.norms)


def all_pairs(layer: PlainLayer) -> tuple[Pair, ...]:
    """Return all pairs of a layer, in the order in which it computes."""
    config = layer.source.config
    feed_forward = config.layers[layer.index].feed_forward
    values = config.num_kv_heads * config.head_dim
    start = config.num_heads * config.head_dim + values
    attention = Pair(
        target=OUT,
        maker=QKV,
        rows=range(start, start + values),
        heads=config.num_kv_heads,
        repeats=config.num_heads // config.num_kv_heads,
        size=config.head_dim,
    )
    inner = feed_forward.size
    gated = Pair(target=DOWN, maker=GATE_UP, rows=range(inner, 2 * inner), size=inner)
    first, rest = norm_pairs(layer)[:1], norm_pairs(layer)[1:]
    return (
        *first,
        *((attention,) if config.qkv_limit is None else ()),  # a limit does not move with a scale
        *rest,
        *((gated,) if feed_forward.kind == "gated" else ()),
    )


def fold(layer: PlainLayer, pair: Pair, scales: Tensor) -> Tensor:
    """Multiply the target's input channels by scales [heads · size], and divide what makes them. Returns the scales
    [in] of the target's channels.

    A norm is stored in few bits: its own rounding would be an error that no method sees. So it is rounded first, and
    the channels are multiplied by what is left of it.
    """
    if pair.norm:
        norm = layer.norms[pair.norm]
        divided = layer.round_norm(pair.norm, norm / scales)
        keeps = divided != 0
        layer.norms[pair.norm] = torch.where(keeps, divided, norm)
        scales = torch.where(keeps, norm / divided, torch.ones_like(norm))
        if (bias := f"{pair.norm}.bias") in layer.norms:
            layer.norms[bias] = layer.norms[bias] / scales
    else:
        rows = slice(pair.rows.start, pair.rows.stop)
        layer.matrices[pair.maker][rows] /= scales[:, None]
        if pair.maker in layer.biases:
            layer.biases[pair.maker][rows] /= scales
    spread = pair.spread(scales)
    for name in (pair.target, *pair.followers):
        layer.matrices[name] = layer.matrices[name] * spread
    return spread

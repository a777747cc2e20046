"""The layers of all vision towers: attention, feed-forward and norms, with options.

A tower puts patches and positions before them, and a projector behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seesay.checkpoint.parts import Source
from seesay.device.linear.linear import Linear
from seesay.encoders.towers.layers import (
    GatedMlp,
    Mlp,
    Norm,
    RMSNorm,
    Segments,
    SegmentTable,
    add_product_norm,
    attend,
    attend_rotated,
)
from seesay.errors import CheckpointError

QKV = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """Sizes and options of a tower's layers. All layers are alike.

    qkv: modules of the checkpoint that have the weights of queries, keys and values, one each or one for all.
    groups_heads: a tensor of all three has each head's query, key and value together.
    has_qkv_bias, has_key_bias: their biases; without a bias of keys the checkpoint has those of queries and values as
        biases of `q_proj` and `v_proj`. has_biases: of the other matrices.
    uses_rms_norm: RMS norms, else layer norms.
    qk_norm_eps: of RMS norms of all heads' queries and keys; None without.
    rotates_neighbours: the checkpoint's rotary positions turn neighbouring elements of a head together, else those of
        its two halves.
    is_gated: the feed-forward is act(gate(x)) · up(x), whose weights are in `gate_up`.
    norms_heads, norms_inner: a norm before the last matrix of the attention, of the feed-forward (EVA-02's sub-norms).
    has_scales: updates are scaled by channel before they are added.
    norms_updates: the norms are of the updates, not of the inputs of attention and feed-forward.
    """

    hidden_size: int
    num_heads: int
    intermediate_size: int
    activation: str
    norm_eps: float
    qkv: tuple[str, ...] = QKV
    groups_heads: bool = False
    has_qkv_bias: bool = True
    has_key_bias: bool = True
    has_biases: bool = True
    uses_rms_norm: bool = False
    qk_norm_eps: float | None = None
    rotates_neighbours: bool = False
    is_gated: bool = False
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    norms_heads: bool = False
    norms_inner: bool = False
    has_scales: bool = False
    norms_updates: bool = False

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise CheckpointError(
                f"the tower's hidden_size={self.hidden_size} is not a multiple of its {self.num_heads} heads"
            )

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    def make_norm(self, size: int | None = None) -> Norm:
        kind = RMSNorm if self.uses_rms_norm else nn.LayerNorm
        return kind(size or self.hidden_size, self.norm_eps)


Angles = tuple[Tensor, Tensor]
"""cos and sin float32 [P, head_dim / 2] of the angles by which the queries and keys of each row are turned."""


class Attention(nn.Module):
    """Full attention of the rows of a picture, or of a window of it."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        size = config.hidden_size
        sources = _list_sources(config)
        biases = None
        if not config.has_key_bias:
            heads = _order_heads(config, 0)
            biases = (
                Source(module=QKV[0], num_outputs=size, picks=heads),
                None,
                Source(module=QKV[2], num_outputs=size),
            )
        self.qkv = Linear(size, bias=config.has_qkv_bias, sources=sources, bias_sources=biases)
        self.proj = Linear(size, size, bias=config.has_biases)
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        if config.qk_norm_eps is not None:
            self.q_norm, self.k_norm = RMSNorm(size, config.qk_norm_eps), RMSNorm(size, config.qk_norm_eps)
        self.norm = config.make_norm() if config.norms_heads else None
        self.heads = (config.num_heads, config.head_dim)

    def forward(self, x: Tensor, segments: Segments | None = None, angles: Angles | None = None) -> Tensor:
        """Return the input of `proj` for rows [N, S, size], of which each of the N sets attends within itself, or for
        packed rows [P, size] with their segments. Queries and keys are turned by `angles`, for packed rows only."""
        qkv = self.qkv(x)
        if angles is not None:
            assert segments is not None
            attended = attend_rotated(qkv.view(len(x), 3, *self.heads), *angles, segments)
        else:
            query, key, value = qkv.chunk(3, dim=-1)
            inputs = (self.q_norm(query), self.k_norm(key), value)
            heads = [t.unflatten(-1, self.heads) for t in inputs]
            if segments is not None:
                assert not isinstance(segments, SegmentTable)
                attended = attend(heads[0], heads[1], heads[2], segments)
            else:
                mixed = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in heads))
                attended = mixed.transpose(1, 2).flatten(2)
        return attended if self.norm is None else self.norm(attended)


def _list_sources(config: LayerConfig) -> list[Source]:
    """Return the sources of queries, keys and values. Where the checkpoint turns neighbours, the elements of each head
    are ordered so that its two halves are turned together: the products of queries and keys stay the same."""
    size, dim = config.hidden_size, config.head_dim
    if config.groups_heads:
        [name] = config.qkv
        heads = [
            tuple(range(first, first + dim) for first in range(index * dim, 3 * size, 3 * dim)) for index in range(3)
        ]
        return [Source(module=name, num_outputs=3 * size, picks=picks) for picks in heads]
    if not config.rotates_neighbours and config.has_key_bias:
        return [Source(module=name, num_outputs=3 * size // len(config.qkv)) for name in config.qkv]
    sources = []
    for index in range(3):
        stored = 3 * size // len(config.qkv)
        number, first = divmod(index * size, stored)
        picks = (range(first, first + size),) if index == 2 else _order_heads(config, first)
        sources.append(Source(module=config.qkv[number], num_outputs=stored, picks=picks))
    return sources


def _order_heads(config: LayerConfig, first: int) -> tuple[range, ...]:
    """Return the order of the stored elements of all heads, which begin at `first`."""
    size, dim = config.hidden_size, config.head_dim
    if not config.rotates_neighbours:
        return (range(first, first + size),)
    starts = range(first, first + size, dim)
    return tuple(chain.from_iterable((range(s, s + dim, 2), range(s + 1, s + dim, 2)) for s in starts))


def _sum_with_bias(offset: Tensor, linear: Linear) -> Tensor:
    return offset if linear.bias is None else offset + linear.bias.float()


class Block(nn.Module):
    """One layer, under the names of timm's towers. attention: another one than `Attention`, with its `forward`."""

    def __init__(self, config: LayerConfig, attention: Attention | None = None) -> None:
        super().__init__()
        size, inner_size, activation = config.hidden_size, config.intermediate_size, config.activation
        self.norm1, self.norm2 = config.make_norm(), config.make_norm()
        self.attn = attention or Attention(config)
        inner_norm = config.make_norm(inner_size) if config.norms_inner else None
        bias = config.has_biases
        self.mlp: GatedMlp | Mlp = (
            GatedMlp(size, inner_size, activation, bias=bias, modules=config.gate_up, norm=inner_norm)
            if config.is_gated
            else Mlp(size, inner_size, activation, bias=bias, norm=inner_norm)
        )
        self.gamma_1 = nn.Parameter(torch.empty(size)) if config.has_scales else None
        self.gamma_2 = nn.Parameter(torch.empty(size)) if config.has_scales else None
        self._norms_updates = config.norms_updates
        self._offsets: tuple[Tensor | None, Tensor | None] = (None, None)

    @property
    def input_norm(self) -> Norm | None:
        """The norm of the layer's input."""
        return None if self._norms_updates else self.norm1

    @property
    def offset(self) -> Tensor | None:
        """The sum of the omitted biases, to be added to x behind this layer."""
        return self._offsets[1]

    def leave_biases_out(self, offset: Tensor) -> Tensor:
        """Leave the biases of this layer's updates out of x. `offset` is the sum of the biases left out before; returns
        the sum with this layer's."""
        first = _sum_with_bias(offset, self.attn.proj)
        second = _sum_with_bias(first, self.mlp.last)
        self._offsets = (first, second)
        return second

    def forward(
        self, x: Tensor, normed: Tensor, next_norm: Norm | None, segments: Segments | None, angles: Angles | None
    ) -> Tensor:
        """Add to x, whose norm is given, in place. Return the next layer's norm of x, or x."""
        attended = self.attn(normed, segments, angles)
        if self._norms_updates:
            x.add_(self.norm1(self.attn.proj(attended)))
            x.add_(self.norm2(self.mlp(x)))
            return x if next_norm is None else next_norm(x)
        offsets = self._offsets
        normed = add_product_norm(x, attended, self.attn.proj, self.norm2, scale=self.gamma_1, offset=offsets[0])
        return add_product_norm(
            x, self.mlp.inner(normed), self.mlp.last, next_norm, scale=self.gamma_2, offset=offsets[1]
        )


def run_blocks(
    blocks: nn.ModuleList,
    x: Tensor,
    last_norm: Norm | None,
    segments: Sequence[Segments | None],
    angles: Angles | None = None,
) -> Iterator[Tensor]:
    """Compute the layers one by one. `segments` are those of each layer. Yields, behind each layer, the norm of x that
    the next one takes, or x where that takes none; the last one takes `last_norm`. x itself is changed in place."""
    layers = cast("list[Block]", list(blocks))
    norms = [*(layer.input_norm for layer in layers), last_norm]
    normed = x if norms[0] is None else norms[0](x)
    for layer, next_norm, own in zip(layers, norms[1:], segments, strict=True):
        normed = layer(x, normed, next_norm, own, angles)
        yield normed

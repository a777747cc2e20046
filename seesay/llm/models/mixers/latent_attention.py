"""Attention to latent rows (DeepSeek-AI 2024, arXiv 2405.04434, multi-head latent attention).

The cache has one row of each token: what a rotated key and a latent vector are. Keys and values are products of the
latent vector with a matrix per head. That of keys is applied to queries, and that of values to what is attended, so
that all heads attend to the same rows, and nothing is expanded.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from seesay.checkpoint.parts import Source, Weight, plain_weight
from seesay.device.linear.linear import Linear
from seesay.device.linear.matrix_linear import MatrixLinear
from seesay.device.linear.norm import rms_norm
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.models.division import Division
from seesay.llm.models.media_rows import SplitLinear
from seesay.llm.models.mixer_spec import LatentSpec
from seesay.llm.models.mixers.attention import AttentionStep
from seesay.llm.models.spec import DecoderConfig
from seesay.llm.ops import Ops
from seesay.llm.ops.latent_rows import rotate


class LatentAttention:
    """Attention of a rank's heads; see `Mixer`."""

    def __init__(self, config: DecoderConfig, index: int, spec: LatentSpec, ops: Ops, division: Division) -> None:
        self._spec, self._ops, self._scale, name = spec, ops, config.attention_scale, f"layers.{index}.self_attn"
        heads = division.heads(config)
        self._num_heads, self._eps = len(heads), config.norm.eps
        self.window = spec
        bias = config.qkv_bias
        queries = Source(module="q_a_proj", num_outputs=spec.query_rank)
        own_bias: list[Source | None] = [queries]
        if not spec.query_rank:
            queries, own_bias = _pick_queries("q_proj", heads, config.num_heads, spec), [None]
        row = _pick_row(spec)
        self.qkv = SplitLinear(
            "self_attn.qkv_proj", config.hidden_size, bias=bias, sources=[queries, row], media=None,
            bias_sources=[*own_bias, row],
        )  # fmt: skip
        self.out = SplitLinear(
            "self_attn.o_proj",
            config.num_heads * spec.value_dim,
            config.hidden_size,
            bias=config.output_bias,
            has_own_bias=division.is_first,
            inputs=range(heads.start * spec.value_dim, heads.stop * spec.value_dim),
            media=None,
        )
        self.linears: Mapping[str, Linear] = {**self.qkv.linears, **self.out.linears}
        self._row_norm = plain_weight(f"{name}.kv_a_layernorm.weight", spec.rank)
        self._expansion = MatrixLinear(spec.rank, [_pick_expansion(heads, config.num_heads, spec)])
        self.linears = {**self.linears, "self_attn.kv_b_proj": self._expansion}
        self.norms: tuple[Weight, ...] = (self._row_norm,)
        self._query_up: Linear | None = None
        if spec.query_rank:
            source = _pick_queries("q_b_proj", heads, config.num_heads, spec)
            self._query_up = Linear(spec.query_rank, sources=[source], bias=False)
            self._query_norm = plain_weight(f"{name}.q_a_layernorm.weight", spec.query_rank)
            self.linears = {**self.linears, "self_attn.q_b_proj": self._query_up}
            self.norms = (*self.norms, self._query_norm)

    def attend(self, qkv: torch.Tensor, cache: LayerCache, step: AttentionStep) -> torch.Tensor:
        """Return the attended values [T, H · V] of `self.qkv`'s output [T, …]."""
        spec, count, heads = self._spec, len(qkv), self._num_heads
        query, rows = torch.split(qkv, [qkv.shape[1] - spec.row_size, spec.row_size], dim=1)
        if self._query_up is not None:
            query = self._query_up(rms_norm(query, self._query_norm.data, self._eps))
        plain, turned_query = torch.split(query.view(count, heads, -1), [spec.plain_dim, spec.turned_dim], dim=2)
        cos, sin = step.turns[0]
        norm = self._row_norm.data, self._eps
        self._ops.write_latent(rows, cos, sin, norm, cache, step.slots, step.faults)
        expansion = self._expansion.matrix.view(heads, -1, spec.rank)
        key_up, value_up = expansion[:, : spec.plain_dim], expansion[:, spec.plain_dim :]
        absorbed = torch.bmm(plain.transpose(0, 1), key_up).transpose(0, 1)
        query = torch.cat((rotate(turned_query, cos, sin), absorbed), dim=2)
        attended = self._ops.attend_latent(query, cache, step.plan, scale=self._scale)
        values = torch.bmm(attended.transpose(0, 1), value_up.transpose(1, 2))
        return values.transpose(0, 1).reshape(count, -1)


def _turned(first: int, spec: LatentSpec) -> tuple[range, ...]:
    """Return the stored components from `first` on that are rotated, in the order in which they are here: what is
    turned together lies half of them apart."""
    stop = first + spec.turned_dim
    if not spec.turns_neighbours:
        return (range(first, stop),)
    return range(first, stop, 2), range(first + 1, stop, 2)


def _pick_queries(module: str, heads: range, num_heads: int, spec: LatentSpec) -> Source:
    """Return the queries of `heads`: of each, what is not rotated, then what is."""
    size = spec.plain_dim + spec.turned_dim
    picks = [
        pick
        for head in heads
        for pick in (
            range(head * size, head * size + spec.plain_dim),
            *_turned(head * size + spec.plain_dim, spec),
        )
    ]
    return Source(module=module, num_outputs=num_heads * size, picks=tuple(picks))


def _pick_row(spec: LatentSpec) -> Source:
    """Return what becomes a token's row: what is rotated, then the latent vector."""
    picks = (*_turned(spec.rank, spec), range(spec.rank))
    return Source(module="kv_a_proj_with_mqa", num_outputs=spec.row_size, picks=picks)


def _pick_expansion(heads: range, num_heads: int, spec: LatentSpec) -> Source:
    """Return what expands latent vectors: of each of `heads`, the matrix of its keys, then that of its values."""
    size = spec.plain_dim + spec.value_dim
    picks = (range(heads.start * size, heads.stop * size),)
    return Source(module="kv_b_proj", num_outputs=num_heads * size, picks=picks)

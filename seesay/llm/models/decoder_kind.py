"""How a model type of text decoders departs from Llama."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from seesay.llm.models.mixer_spec import MixerSpec, StateSpaceSpec
from seesay.llm.models.spec import (
    AlibiSpec,
    ExpertsSpec,
    FeedForwardKind,
    HalfLayer,
    NormPlacement,
    NormSpec,
    QKNorm,
    QKVLayout,
    QueryGrowth,
)

if TYPE_CHECKING:
    from seesay.llm.ops.interface import AnyActivation


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderKind:
    """Properties that a model type implies, or that its configuration calls otherwise than Llama's. See `DecoderConfig`
    and `FeedForwardSpec`; None: as the configuration's option of Llama's name says.

    experts: those of the layers that are not among `dense_layers`, of inner size `expert_size`. joins_gate_up: see
    `FeedForwardSpec.is_joined`. activation: where the configuration has no option of it, which is called
    `activation_option`. splits_turned: layers without rotary positions are those whose queries grow, and others those
    whose queries and keys are normed. mixer: of the `mixing_layers`; None: of those that are called `linear_attention`
    or `conv`. other_mixer: of the other layers; None: attention. beside, shares: see `LayerSpec`, of all layers.
    is_still: there are no positions. gate_scale, output_scale: see `FeedForwardSpec`. head_dim: that of the rotary
    embedding, where heads have several. sections: see `RotarySpec`, where the configuration has none;
    alternates_sections: whether these alternate. alibi: instead of a rotary embedding. halves: see `LayerSpec.half`, of
    all layers; none where all have both. media_layers: see `LayerSpec.attends_media`. num_added_tokens: of a table that
    `joins_added`.
    """

    norm: NormSpec | None = None
    norms: NormPlacement = "before"
    num_kv_heads: int | None = None
    qkv: QKVLayout = "separate"
    qkv_bias: bool | None = None
    output_bias: bool | None = None
    qk_norm: QKNorm | None = None
    qkv_limit: float | None = None
    turns_neighbours: bool = False
    sections: tuple[int, ...] = ()
    alternates_sections: bool = False
    alibi: AlibiSpec | None = None
    has_embedding_norm: bool = False
    feed_forward: FeedForwardKind = "gated"
    inner_size: int | None = None
    inner_bias: bool | None = None
    experts: ExpertsSpec | None = None
    expert_size: int = 0
    dense_layers: frozenset[int] = frozenset()
    joins_gate_up: bool = False
    activation: AnyActivation | None = None
    activation_option: str = "hidden_act"
    attention_scale: float | None = None
    embedding_scale: float = 1.0
    scales_media: bool = False
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    query_growth: QueryGrowth | None = None
    splits_turned: bool = False
    has_sinks: bool = False
    head_bias: bool = False
    media_layers: frozenset[int] = frozenset()
    num_added_tokens: int = 0
    has_output_gate: bool = False
    mixer: MixerSpec | None = None
    mixing_layers: frozenset[int] | None = None
    other_mixer: MixerSpec | None = None
    beside: StateSpaceSpec | None = None
    shares: tuple[float, float] = (1.0, 1.0)
    halves: tuple[HalfLayer, ...] = ()
    is_still: bool = False
    gate_scale: float = 1.0
    output_scale: float = 1.0
    head_dim: int | None = None

"""The model types of text decoders that keep a state of each sequence, and how each departs from Llama."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from seesay.errors import CheckpointError
from seesay.llm.models.configs.expert_kinds import (
    find_dense_qwen_layers,
    read_glm_experts,
    read_jamba_experts,
    read_nemotron_experts,
    read_qwen_experts,
)
from seesay.llm.models.configs.mixer_kinds import (
    NEMOTRON_NAMES,
    find_lfm2_size,
    read_channel_delta_net,
    read_convolution,
    read_delta_net,
    read_latent,
    read_mamba,
    read_scaled_state_space,
    read_state_space,
)
from seesay.llm.models.decoder_kind import DecoderKind
from seesay.llm.models.spec import HalfLayer, NormSpec

if TYPE_CHECKING:
    from seesay.checkpoint.model_config import ModelConfig


_NEMOTRON_HALVES: Mapping[str, HalfLayer] = {
    "linear_attention": "mixer", "full_attention": "mixer", "mlp": "feed_forward", "moe": "feed_forward",
}  # fmt: skip


def read_bamba(config: ModelConfig) -> DecoderKind:
    attending = frozenset(config.attn_layer_indices or ())
    return DecoderKind(
        mixer=read_state_space(config),
        mixing_layers=frozenset(i for i in range(config.num_hidden_layers) if i not in attending),
    )


def read_falcon_h1(config: ModelConfig) -> DecoderKind:
    scale = config.attention_in_multiplier
    if config.attention_bias and scale != 1.0:
        raise CheckpointError(f"attention_in_multiplier={scale} is not supported with biases")
    gate_scale, output_scale = config.mlp_multipliers
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return DecoderKind(
        beside=read_scaled_state_space(config),
        shares=(config.attention_out_multiplier * scale, config.ssm_out_multiplier),
        attention_scale=head_dim**-0.5 * config.key_multiplier * scale**2,
        gate_scale=gate_scale,
        output_scale=output_scale,
        embedding_scale=config.embedding_multiplier,
        logit_scale=config.lm_head_multiplier,
    )


def read_granite4(config: ModelConfig, kind: DecoderKind) -> DecoderKind:
    """kind: that of a Granite 3 with as many experts."""
    if config.position_embedding_type not in (None, "rope", "nope"):
        raise CheckpointError(f"position_embedding_type={config.position_embedding_type!r} is not supported")
    kind = replace(kind, mixer=read_state_space(config), is_still=config.position_embedding_type != "rope")
    if config.num_local_experts:
        return kind
    return replace(kind, inner_size=config.shared_intermediate_size, joins_gate_up=True)


def read_jamba(config: ModelConfig) -> DecoderKind:
    layers = range(config.num_hidden_layers)
    period, offset = config.expert_layer_period, config.expert_layer_offset
    has_experts = config.num_experts > 1
    return DecoderKind(
        is_still=True,
        mixer=read_mamba(config),
        mixing_layers=frozenset(i for i in layers if i % config.attn_layer_period != config.attn_layer_offset),
        experts=read_jamba_experts(config) if has_experts else None,
        expert_size=config.intermediate_size,
        dense_layers=frozenset(i for i in layers if i % period != offset),
    )


def read_kimi_linear(config: ModelConfig) -> DecoderKind:
    """Delta nets between layers of attention to latent rows, of which nothing is rotated."""
    latent = read_latent(config, turns_neighbours=False)
    return DecoderKind(
        num_kv_heads=1,
        head_dim=latent.turned_dim,
        attention_scale=float((latent.plain_dim + latent.turned_dim) ** -0.5),
        is_still=True,
        mixer=read_channel_delta_net(config),
        other_mixer=latent,
        experts=read_glm_experts(config, count_option="num_local_experts"),
        expert_size=config.moe_intermediate_size,
        dense_layers=frozenset(index for index, kind in enumerate(config.mlp_layer_types) if kind == "dense"),
    )


def read_lfm2(config: ModelConfig) -> DecoderKind:
    return DecoderKind(
        norm=NormSpec(eps=config.norm_eps),
        qk_norm="head",
        inner_size=find_lfm2_size(config),
        activation="silu",
        mixer=read_convolution(config),
    )


def read_nemotron_h(config: ModelConfig) -> DecoderKind:
    """Each layer is a state space, attention, a feed-forward or experts."""
    types: list[str] = config.layer_types
    if unknown := sorted({str(name) for name in types} - _NEMOTRON_HALVES.keys()):
        raise CheckpointError(f"layer_types: {unknown[0]!r} is not supported in a {config.model_type}")
    has_experts = "moe" in types
    return DecoderKind(
        norm=NormSpec(eps=config.layer_norm_epsilon),
        is_still=True,
        halves=tuple(_NEMOTRON_HALVES[name] for name in types),
        mixer=read_state_space(config, NEMOTRON_NAMES),
        mixing_layers=frozenset(i for i, name in enumerate(types) if name == "linear_attention"),
        feed_forward="plain",
        activation_option="mlp_hidden_act",
        experts=read_nemotron_experts(config) if has_experts else None,
        expert_size=config.moe_intermediate_size,
        dense_layers=frozenset(i for i, name in enumerate(types) if name == "mlp"),
    )


def read_qwen3_5(config: ModelConfig, *, is_grouped: bool = False) -> DecoderKind:
    return DecoderKind(
        norm=NormSpec(eps=config.rms_norm_eps, offset=1.0),
        qk_norm="head",
        has_output_gate=True,
        mixer=read_delta_net(config, is_grouped=is_grouped),
    )


def read_qwen3_5_moe(config: ModelConfig) -> DecoderKind:
    experts = replace(
        read_qwen_experts(config, is_normalized=True),
        shared_size=config.shared_expert_intermediate_size,
        has_shared_gate=True,
    )
    return replace(read_qwen3_5(config), experts=experts, expert_size=config.moe_intermediate_size)


def read_qwen3_next(config: ModelConfig) -> DecoderKind:
    dense = read_qwen3_5(config, is_grouped=True)
    if not config.num_experts:
        return dense
    experts = replace(
        read_qwen_experts(config), shared_size=config.shared_expert_intermediate_size, has_shared_gate=True
    )
    return replace(
        dense,
        experts=experts,
        expert_size=config.moe_intermediate_size,
        dense_layers=find_dense_qwen_layers(config),
    )

"""The model types of text decoders, and how each departs from Llama."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from seesay.errors import CheckpointError
from seesay.llm.models.configs import state_kinds
from seesay.llm.models.configs.alibi import make_alibi, make_mpt_alibi
from seesay.llm.models.configs.expert_kinds import (
    find_dense_ernie_layers,
    find_dense_qwen_layers,
    read_deepseek_experts,
    read_ernie_experts,
    read_ernie_vl_experts,
    read_glm_experts,
    read_gpt_oss_experts,
    read_granite_experts,
    read_llama4_experts,
    read_mixtral_experts,
    read_phi_experts,
    read_qwen2_experts,
    read_qwen3_vl_experts,
    read_qwen_experts,
)
from seesay.llm.models.configs.mixer_kinds import (
    find_yarn_scale,
    read_latent,
)
from seesay.llm.models.decoder_kind import DecoderKind
from seesay.llm.models.spec import (
    ExpertsSpec,
    NormPlacement,
    NormSpec,
    QKNorm,
    QueryGrowth,
)

if TYPE_CHECKING:
    from seesay.checkpoint.model_config import ModelConfig


def _gemma(config: ModelConfig, norms: NormPlacement = "before", qk_norm: QKNorm | None = None) -> DecoderKind:
    return DecoderKind(
        norm=NormSpec(eps=config.rms_norm_eps, offset=1.0),
        norms=norms,
        qk_norm=qk_norm,
        embedding_scale=float(config.hidden_size**0.5),
        activation_option="hidden_activation" if getattr(config, "hidden_activation", None) else "hidden_act",
    )


def _bloom(config: ModelConfig) -> DecoderKind:
    if config.apply_residual_connection_post_layernorm:
        raise CheckpointError("apply_residual_connection_post_layernorm=True is not supported")
    return DecoderKind(
        norm=NormSpec(kind="layer", eps=config.layer_norm_epsilon, has_bias=True),
        num_kv_heads=config.num_attention_heads,
        qkv="grouped",
        qkv_bias=True,
        output_bias=True,
        alibi=make_alibi(config.num_attention_heads),
        has_embedding_norm=True,
        feed_forward="plain",
        inner_size=4 * config.hidden_size,
        inner_bias=True,
        activation="gelu_tanh",
    )


def _cohere(config: ModelConfig) -> DecoderKind:
    return DecoderKind(
        norm=NormSpec(kind="layer", eps=config.layer_norm_eps),
        norms="parallel",
        qk_norm="per_head" if config.use_qk_norm else None,
        turns_neighbours=True,
        logit_scale=float(config.logit_scale),
    )


def _falcon(config: ModelConfig) -> DecoderKind:
    is_new = config.new_decoder_architecture
    norms: NormPlacement = "before"
    if is_new and config.num_ln_in_parallel_attn in (None, 2):
        norms = "parallel_pair"
    elif is_new or config.parallel_attn:
        norms = "parallel"
    kv_heads = 1 if config.multi_query else config.num_attention_heads
    return DecoderKind(
        norm=NormSpec(kind="layer", eps=config.layer_norm_epsilon, has_bias=True),
        norms=norms,
        num_kv_heads=config.num_kv_heads if is_new else kv_heads,
        qkv="grouped",
        qkv_bias=config.bias,
        output_bias=config.bias,
        alibi=make_alibi(config.num_attention_heads, is_rounded=True) if config.alibi else None,
        feed_forward="plain",
        inner_size=config.ffn_hidden_size,
        inner_bias=config.bias,
        activation_option="activation",
    )


def _deepseek(config: ModelConfig, experts: ExpertsSpec, *, turns_neighbours: bool) -> DecoderKind:
    latent = read_latent(config, turns_neighbours=turns_neighbours)
    return DecoderKind(
        num_kv_heads=1,
        head_dim=latent.turned_dim,
        attention_scale=find_yarn_scale(config, latent.plain_dim + latent.turned_dim),
        experts=experts,
        expert_size=config.moe_intermediate_size,
        dense_layers=frozenset(range(min(config.first_k_dense_replace, config.num_hidden_layers))),
        mixer=latent,
        mixing_layers=frozenset(range(config.num_hidden_layers)),
    )


def _deepseek_plain(config: ModelConfig) -> DecoderKind:
    """The attention of a Llama, and experts of DeepSeek-V2, as in the smallest DeepSeek-VL2."""
    dense = frozenset(index for index, kind in enumerate(config.mlp_layer_types) if kind == "dense")
    return DecoderKind(
        experts=read_deepseek_experts(config), expert_size=config.moe_intermediate_size, dense_layers=dense
    )


def _deepseek_v3(config: ModelConfig) -> DecoderKind:
    return _deepseek(config, read_glm_experts(config), turns_neighbours=bool(config.rope_interleave))


def _ernie4_5_moe(config: ModelConfig) -> DecoderKind:
    if config.use_bias:
        raise CheckpointError("use_bias=True is not supported: the head has no bias here")
    return DecoderKind(
        turns_neighbours=True,
        experts=read_ernie_experts(config, size=config.moe_intermediate_size),
        expert_size=config.moe_intermediate_size,
        dense_layers=find_dense_ernie_layers(config),
    )


def _ernie4_5_vl_moe(config: ModelConfig) -> DecoderKind:
    if config.use_bias:
        raise CheckpointError("use_bias=True is not supported: linear layers have no biases here")
    experts, size = read_ernie_vl_experts(config)
    return DecoderKind(
        turns_neighbours=True,
        sections=(22, 22, 20),
        alternates_sections=True,
        experts=experts,
        expert_size=size,
        dense_layers=frozenset(i for i, kind in enumerate(config.mlp_layer_types) if kind == "dense"),
    )


def _glm4_moe(config: ModelConfig) -> DecoderKind:
    return DecoderKind(
        output_bias=False,
        qk_norm="head" if getattr(config, "use_qk_norm", False) else None,
        experts=read_glm_experts(config),
        expert_size=config.moe_intermediate_size,
        dense_layers=frozenset(range(config.first_k_dense_replace)),
    )


def _gpt_oss(config: ModelConfig) -> DecoderKind:
    return DecoderKind(
        experts=read_gpt_oss_experts(config),
        expert_size=config.intermediate_size,
        activation="clamped_silu",
        has_sinks=True,
    )


def _granite(config: ModelConfig) -> DecoderKind:
    return DecoderKind(
        attention_scale=config.attention_multiplier,
        embedding_scale=float(config.embedding_multiplier),
        scales_media=True,
        residual_scale=float(config.residual_multiplier),
        logit_scale=1.0 / config.logits_scaling,
    )


def _granitemoe(config: ModelConfig) -> DecoderKind:
    return replace(
        _granite(config),
        experts=read_granite_experts(config),
        expert_size=config.intermediate_size,
        joins_gate_up=True,
    )


def _llama(config: ModelConfig) -> DecoderKind:
    return DecoderKind(alibi=make_alibi(config.num_attention_heads) if getattr(config, "has_alibi", False) else None)


def _llama4(config: ModelConfig) -> DecoderKind:
    parameters = config.rope_parameters or {}
    if (kind := parameters.get("rope_type", "default")) not in ("default", "linear", "llama3"):
        raise CheckpointError(f"rope_parameters.rope_type={kind!r} is not supported in a Llama 4")
    layers = range(config.num_hidden_layers)
    growth = QueryGrowth(beta=float(config.attn_scale), length=int(config.floor_scale), first=1)
    return DecoderKind(
        turns_neighbours=True,
        qk_norm="plain" if config.use_qk_norm else None,
        inner_size=config.intermediate_size_mlp,
        experts=read_llama4_experts(config),
        expert_size=config.intermediate_size,
        dense_layers=frozenset(layers).difference(config.moe_layers),
        query_growth=growth if config.attn_temperature_tuning else None,
        splits_turned=True,
    )


def _ministral3(config: ModelConfig) -> DecoderKind:
    parameters = config.rope_parameters or {}
    beta, length = (parameters.get(name) for name in ("llama_4_scaling_beta", "original_max_position_embeddings"))
    if beta is None:
        return DecoderKind()
    if isinstance(beta, bool) or not isinstance(beta, int | float) or not 0 <= beta < math.inf:
        raise CheckpointError(f"rope_parameters.llama_4_scaling_beta must be a number from 0 on, got {beta!r}")
    if type(length) is not int or length < 1:
        raise CheckpointError(
            f"rope_parameters.original_max_position_embeddings must be a positive integer, got {length!r}"
        )
    return DecoderKind(query_growth=QueryGrowth(beta=float(beta), length=length))


def _mixtral(config: ModelConfig) -> DecoderKind:
    return DecoderKind(experts=read_mixtral_experts(config), expert_size=config.intermediate_size)


def _mllama(config: ModelConfig) -> DecoderKind:
    layers = frozenset(config.cross_attention_layers)
    if not layers <= frozenset(range(config.num_hidden_layers)):
        raise CheckpointError(f"cross_attention_layers={sorted(layers)} of {config.num_hidden_layers} layers")
    return DecoderKind(media_layers=layers, num_added_tokens=8)


def _mpt(config: ModelConfig) -> DecoderKind:
    attention = config.attn_config
    return DecoderKind(
        norm=NormSpec(kind="layer", eps=config.layer_norm_epsilon),
        num_kv_heads=config.num_attention_heads,
        qkv="joined",
        qkv_bias=False,
        output_bias=False,
        qkv_limit=attention.clip_qkv,
        alibi=make_mpt_alibi(config.num_attention_heads, attention.alibi_bias_max),
        feed_forward="plain",
        inner_size=config.expansion_ratio * config.hidden_size,
        inner_bias=False,
        activation="gelu",
        attention_scale=attention.softmax_scale,
    )


def _olmo(config: ModelConfig) -> DecoderKind:
    return DecoderKind(norm=NormSpec(kind="layer", eps=1e-5, has_weight=False), qkv_limit=config.clip_qkv)


def _olmoe(config: ModelConfig) -> DecoderKind:
    if config.clip_qkv is not None:
        raise CheckpointError(f"clip_qkv={config.clip_qkv!r} is not supported behind norms of queries and keys")
    return DecoderKind(qk_norm="whole", experts=read_qwen_experts(config), expert_size=config.intermediate_size)


def _phimoe(config: ModelConfig) -> DecoderKind:
    return DecoderKind(
        norm=NormSpec(kind="layer", eps=config.rms_norm_eps, has_bias=True),
        experts=read_phi_experts(config),
        expert_size=config.intermediate_size,
        head_bias=bool(config.lm_head_bias),
    )


def _qwen2_moe(config: ModelConfig) -> DecoderKind:
    return DecoderKind(
        qkv_bias=config.qkv_bias,
        experts=read_qwen2_experts(config),
        expert_size=config.moe_intermediate_size,
        dense_layers=find_dense_qwen_layers(config),
    )


def _qwen3_moe(config: ModelConfig) -> DecoderKind:
    return DecoderKind(
        qk_norm="head",
        experts=read_qwen_experts(config),
        expert_size=config.moe_intermediate_size,
        dense_layers=find_dense_qwen_layers(config),
    )


def _qwen3_vl_moe(config: ModelConfig) -> DecoderKind:
    return DecoderKind(
        qk_norm="head",
        experts=read_qwen3_vl_experts(config),
        expert_size=config.moe_intermediate_size,
        dense_layers=find_dense_qwen_layers(config),
    )


def _starcoder2(config: ModelConfig) -> DecoderKind:
    return DecoderKind(
        norm=NormSpec(kind="layer", eps=config.norm_epsilon, has_bias=True),
        qkv_bias=config.use_bias,
        output_bias=config.use_bias,
        feed_forward="plain",
        inner_bias=config.use_bias,
    )


_GLM = DecoderKind(output_bias=False, turns_neighbours=True, joins_gate_up=True)
_KINDS: Mapping[str, DecoderKind | Callable[[ModelConfig], DecoderKind]] = {
    "bloom": _bloom,
    "cohere": _cohere,
    "deepseek_ocr2_text": _deepseek_plain,
    "deepseek_v2": lambda config: _deepseek(config, read_deepseek_experts(config), turns_neighbours=True),
    "deepseek_v3": _deepseek_v3,
    "ernie4_5_moe": _ernie4_5_moe,
    "ernie4_5_vl_moe_text": _ernie4_5_vl_moe,
    "bamba": state_kinds.read_bamba,
    "falcon": _falcon,
    "falcon_h1": state_kinds.read_falcon_h1,
    "gemma": _gemma,
    "gemma2": lambda config: _gemma(config, "around"),
    "gemma3_text": lambda config: _gemma(config, "around", "head"),
    "glm": _GLM,
    "glm4": replace(_GLM, norms="around"),
    "glm4v_text": replace(_GLM, norms="around", qkv_bias=True, sections=(8, 12, 12)),
    "glm4_moe": _glm4_moe,
    "glm4v_moe_text": lambda config: replace(_glm4_moe(config), sections=(8, 12, 12), qk_norm=None),
    "gpt_oss": _gpt_oss,
    "granite": _granite,
    "granitemoe": _granitemoe,
    "granitemoehybrid": lambda config: state_kinds.read_granite4(
        config, (_granitemoe if config.num_local_experts else _granite)(config)
    ),
    "granitemoeshared": _granitemoe,
    "jamba": state_kinds.read_jamba,
    "kimi_linear": state_kinds.read_kimi_linear,
    "lfm2": state_kinds.read_lfm2,
    "llama": _llama,
    "llama4_text": _llama4,
    "ministral3": _ministral3,
    "mistral": DecoderKind(),
    "mixtral": _mixtral,
    "mllama_text_model": _mllama,
    "mpt": _mpt,
    "nemotron_h": state_kinds.read_nemotron_h,
    "olmo": _olmo,
    "olmo2": DecoderKind(norms="behind", qk_norm="whole"),
    "olmoe": _olmoe,
    "phimoe": _phimoe,
    "phi3": DecoderKind(qkv="joined", joins_gate_up=True),
    "phi4_multimodal": DecoderKind(qkv="joined", joins_gate_up=True),
    "qwen2": DecoderKind(qkv_bias=True),
    "qwen2_vl_text": DecoderKind(qkv_bias=True),
    "qwen2_5_vl_text": DecoderKind(qkv_bias=True),
    "qwen2_moe": _qwen2_moe,
    "qwen3": DecoderKind(qk_norm="head"),
    "qwen3_5_moe_text": state_kinds.read_qwen3_5_moe,
    "qwen3_5_text": state_kinds.read_qwen3_5,
    "qwen3_moe": _qwen3_moe,
    "qwen3_next": state_kinds.read_qwen3_next,
    "qwen3_vl_moe_text": _qwen3_vl_moe,
    "qwen3_vl_text": DecoderKind(qk_norm="head"),
    "smollm3": DecoderKind(),
    "starcoder2": _starcoder2,
}


def list_backbones() -> tuple[str, ...]:
    """The model types that `find_kind` knows."""
    return tuple(sorted(_KINDS))


def find_kind(config: ModelConfig) -> DecoderKind | None:
    """Return the kind of the decoder that `config` describes; None for a model type that is not known."""
    found = _KINDS.get(config.model_type)
    return found(config) if callable(found) else found

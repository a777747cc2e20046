"""Text models as their authors publish them, with code beside the weights: read as models of Transformers with the same
layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seesay.checkpoint.fields import read_count, read_number
from seesay.errors import CheckpointError

_GLM_OPTIONS: Mapping[str, object] = {
    "add_bias_linear": False,
    "apply_residual_connection_post_layernorm": False,
    "original_rope": True,
    "post_layer_norm": True,
    "rmsnorm": True,
}


_FIRST_BAICHUAN_VOCABULARY = 64000


def read_baichuan(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of a Llama. The models of 13B have ALiBi instead of rotary embeddings: theirs do not say
    so, but name no `max_position_embeddings`. The second Baichuan, whose head has unit rows, has another vocabulary."""
    has_alibi = config.get("max_position_embeddings") is None
    is_second = config.get("architectures") == ["BaichuanForCausalLM"]
    if has_alibi:
        is_second = config.get("vocab_size") != _FIRST_BAICHUAN_VOCABULARY
    return {
        **_without_code(config),
        "model_type": "llama",
        "has_alibi": has_alibi,
        "has_unit_head": is_second,
        "max_position_embeddings": read_count(config, "model_max_length" if has_alibi else "max_position_embeddings"),
        "qkv_layout": "joined",
    }


def read_bloom(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration with the length of texts that BLOOM was trained with: 2048 unless it says another."""
    return {**_without_code(config), "max_position_embeddings": config.get("seq_length") or 2048}


_MPT_OPTIONS: Mapping[str, object] = {"no_bias": True, "tie_word_embeddings": True}
_MPT_ATTENTION: Mapping[str, object] = {
    "alibi": True,
    "attn_type": "multihead_attention",
    "prefix_lm": False,
    "qk_ln": False,
}


def read_mpt(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration as Transformers' class reads it. Raises `CheckpointError` naming an option which that
    class leaves out."""
    attention = config.get("attn_config") or {}
    if not isinstance(attention, Mapping):
        raise CheckpointError(f"attn_config must be an object, got {str(attention)[:40]!r}")
    for place, options, expected in (("", config, _MPT_OPTIONS), ("attn_config.", attention, _MPT_ATTENTION)):
        for name, value in expected.items():
            if options.get(name, value) != value:
                raise CheckpointError(f"{place}{name}={str(options[name])[:40]} is not supported")
    norm = config.get("norm_type", "low_precision_layernorm")
    if norm not in ("layernorm", "low_precision_layernorm"):
        raise CheckpointError(f"norm_type={str(norm)[:40]!r} is not supported")
    if config.get("logit_scale") is not None:
        raise CheckpointError(f"logit_scale={str(config['logit_scale'])[:40]!r} is not supported")
    own = _without_code(config)
    return {**own, "architectures": ["MptForCausalLM"], "max_position_embeddings": config.get("max_seq_len") or 2048}


def read_minicpm(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of a Granite (arXiv 2404.06395, section 3.1). Raises `CheckpointError` naming what is
    not supported."""
    for option in ("num_experts", "sparse_config"):
        if config.get(option):
            raise CheckpointError(f"{option}={str(config[option])[:40]} is not supported")
    size, num_layers, num_heads = (
        read_count(config, name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")
    )
    head_dim = read_count(config, "head_dim") if config.get("head_dim") is not None else max(1, size // num_heads)
    return {
        **_without_code(config),
        "model_type": "granite",
        "attention_multiplier": head_dim**-0.5,
        "embedding_multiplier": read_number(config, "scale_emb"),
        "logits_scaling": size / read_number(config, "dim_model_base"),
        "residual_multiplier": read_number(config, "scale_depth") / num_layers**0.5,
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", True)),
    }


def read_deepseek(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of a Qwen2-MoE in which what all tokens go through has no gate (DeepSeekMoE, arXiv
    2401.06066). Raises `CheckpointError` naming what is not supported."""
    for option, expected in (("scoring_func", "softmax"), ("moe_layer_freq", 1), ("attention_bias", False)):
        if config.get(option, expected) != expected:
            raise CheckpointError(f"{option}={str(config[option])[:40]!r} is not supported")
    size, num_shared = (read_count(config, name) for name in ("moe_intermediate_size", "n_shared_experts"))
    num_dense = config.get("first_k_dense_replace", 0)
    if type(num_dense) is not int or not 0 <= num_dense <= read_count(config, "num_hidden_layers"):
        raise CheckpointError(f"first_k_dense_replace={str(num_dense)[:40]!r} is not a number of layers")
    return {
        **_without_code(config),
        "model_type": "qwen2_moe",
        "decoder_sparse_step": 1,
        "has_shared_gate": False,
        "mlp_only_layers": list(range(num_dense)),
        "norm_topk_prob": bool(config.get("norm_topk_prob", False)),
        "num_experts": read_count(config, "n_routed_experts"),
        "qkv_bias": False,
        "shared_expert_intermediate_size": size * num_shared,
        "use_sliding_window": False,
    }


def read_chatglm(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of a GLM, without a tower. Raises `CheckpointError` naming what is not supported."""
    for option, expected in _GLM_OPTIONS.items():
        if config.get(option, expected) != expected:
            raise CheckpointError(f"{option}={config[option]!r} is not supported")
    heads = read_count(config, "num_attention_heads")
    shares_keys = bool(config.get("multi_query_attention", False))
    return {
        "architectures": config.get("architectures"),
        "model_type": "glm",
        "attention_bias": bool(config.get("add_qkv_bias", False)),
        "bos_token_id": None,
        "eos_token_id": config.get("eos_token_id"),
        "head_dim": config.get("kv_channels", 128),
        "hidden_act": "silu",
        "hidden_size": read_count(config, "hidden_size"),
        "intermediate_size": read_count(config, "ffn_hidden_size"),
        "max_position_embeddings": read_count(config, "seq_length"),
        "num_attention_heads": heads,
        "num_hidden_layers": read_count(config, "num_layers"),
        "num_key_value_heads": read_count(config, "multi_query_group_num") if shares_keys else heads,
        "pad_token_id": config.get("pad_token_id"),
        "partial_rotary_factor": 0.5,
        "qkv_layout": "joined" if shares_keys else "grouped",
        "rms_norm_eps": config.get("layernorm_epsilon", 1e-5),
        "rope_theta": 10000.0 * read_number(config, "rope_ratio"),
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", False)),
        "torch_dtype": config.get("torch_dtype"),
        "vocab_size": read_count(config, "padded_vocab_size"),
    }


def _without_code(config: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in config.items() if name not in ("attn_implementation", "auto_map")}

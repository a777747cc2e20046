"""Molmo as its authors publish it: a Qwen2 or an OLMo 2 under other names, and a CLIP whose sizes are constants of the
code. Read as a LLaVA in Transformers' layout, which is a tower and a decoder, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seesay.checkpoint.layouts.original_llava import TOWERS
from seesay.errors import CheckpointError

NUM_ADDED_TOKENS = 128
"""Embeddings of tokens that are not of the decoder's vocabulary, pictures' among them."""
_FEATURE_LAYERS = (-2, -9)
_NUM_TOWER_LAYERS = 23
"""Of CLIP's 24: the last one is not published."""
_EXPECTED: Mapping[str, object] = {
    "clip_qkv": None,
    "layer_norm_type": "rms",
    "moe_num_experts": None,
    "tie_word_embeddings": False,
    "use_position_ids": True,
    "weight_tying": False,
}
_SAME = ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
_LEFT_OUT = {"rope_theta": 10000.0, "torch_dtype": None, "bos_token_id": None, "eos_token_id": None}


def read_molmo(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of the decoder, with norms before its layers (Qwen2) or behind them (OLMo 2), and of the
    tower, whose sizes a `vision_config` may change. Raises `CheckpointError` naming a field that is not supported."""
    for name, value in _EXPECTED.items():
        if config.get(name, value) != value:
            raise CheckpointError(f"{name} must be {value!r}, got {str(config[name])[:40]!r}")
    text = _read_text(config)
    vision = config.get("vision_config", {})
    if not isinstance(vision, Mapping):
        raise CheckpointError(f"vision_config must be an object, got {str(vision)[:40]!r}")
    return {
        "architectures": config.get("architectures"),
        "model_type": "llava",
        "text_config": text,
        "tie_word_embeddings": False,
        "vision_config": {
            **TOWERS["openai/clip-vit-large-patch14-336"],
            "num_hidden_layers": _NUM_TOWER_LAYERS,
            **vision,
            "model_type": "clip_vision_model",
        },
        "vision_feature_layer": list(_FEATURE_LAYERS),
        "vision_feature_select_strategy": "default",
    }


def _read_text(config: Mapping[str, object]) -> dict[str, object]:
    """Return the configuration of the decoder."""
    kind = _read_kind(config)
    numbers = {name: _count(config, name) for name in _SAME}
    inner = _count(config, "intermediate_size")
    if inner % 2:
        raise CheckpointError(f"intermediate_size must be even, for two matrices are in one, got {inner}")
    return {
        **{name: config.get(name, default) for name, default in _LEFT_OUT.items()},
        **numbers,
        "model_type": kind,
        "intermediate_size": inner // 2,
        "hidden_act": "silu",
        "rms_norm_eps": config.get("layer_norm_eps") or 1e-5,
        "num_key_value_heads": config.get("num_key_value_heads") or numbers["num_attention_heads"],
        "vocab_size": _count(config, "embedding_size" if config.get("embedding_size") is not None else "vocab_size"),
        "tie_word_embeddings": False,
        "qkv_layout": "joined",
        "has_up_first": True,
        "num_added_tokens": NUM_ADDED_TOKENS,
    }


def _read_kind(config: Mapping[str, object]) -> str:
    """Return the `model_type` whose layers the options of norms and biases describe."""
    is_behind, norms_heads, has_bias = (
        bool(config.get(name, False)) for name in ("norm_after", "attention_layer_norm", "qkv_bias")
    )
    if norms_heads != is_behind or has_bias == is_behind:
        raise CheckpointError(
            "norm_after, attention_layer_norm and qkv_bias must be true, true and false (OLMo 2) or false, false and "
            f"true (Qwen2), got {is_behind}, {norms_heads} and {has_bias}"
        )
    return "olmo2" if is_behind else "qwen2"


def _count(config: Mapping[str, object], name: str) -> int:
    value = config.get(name)
    if type(value) is not int or value < 1:
        raise CheckpointError(f"{name} must be a positive integer, got {str(value)[:40]!r}")
    return value

"""The first Qwen and Qwen-VL as their authors publish them: read as a Qwen2, and as a LLaVA in Transformers' layout,
which is a tower and a decoder, too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from seesay.checkpoint.fields import read_count, read_number
from seesay.errors import CheckpointError

_QUERY_HEAD_SIZE = 128
"""Components of a head of the resampler, whatever the configuration says."""
_NORM_EPS = 1e-6
_MOST_PATCHES = 256
_MOST: Mapping[str, int] = {
    "heads": 1 << 12,
    "image_size": 1 << 14,
    "layers": 1 << 10,
    "n_queries": 1 << 12,
    "output_dim": 1 << 20,
    "patch_size": 1 << 12,
    "width": 1 << 20,
}
"""Sizes of the tower, with the largest plausible value."""


def read_qwen(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of a Qwen2 with as many keys as queries, whose layers are the same. Raises
    `CheckpointError` naming what is not supported."""
    for option, expected in {"no_bias": True, "rotary_pct": 1.0}.items():
        if config.get(option, expected) != expected:
            raise CheckpointError(f"{option}={str(config[option])[:40]} is not supported")
    if config.get("audio") is not None:
        raise CheckpointError("audio of a QWenLMHeadModel (Qwen-Audio) is not supported")
    size, heads = (read_count(config, name) for name in ("hidden_size", "num_attention_heads"))
    head_dim = read_count({"kv_channels": 128, **config}, "kv_channels")
    if head_dim * heads != size:
        raise CheckpointError(f"kv_channels={head_dim}: {heads} heads of that size are not hidden_size={size}")
    inner, positions = (read_count(config, name) for name in ("intermediate_size", "max_position_embeddings"))
    is_stretched, is_scaled = (bool(config.get(name, True)) for name in ("use_dynamic_ntk", "use_logn_attn"))
    trained = read_count(config, "seq_length") if is_stretched or is_scaled else positions
    return {
        "architectures": config.get("architectures"),
        "model_type": "qwen2",
        "bos_token_id": None,
        "doubles_ntk": is_stretched,
        "eos_token_id": config.get("eos_token_id"),
        "hidden_act": "silu",
        "hidden_size": size,
        "intermediate_size": max(1, inner // 2),
        "max_position_embeddings": positions,
        "num_attention_heads": heads,
        "num_hidden_layers": read_count(config, "num_hidden_layers"),
        "num_key_value_heads": heads,
        "pad_token_id": config.get("pad_token_id"),
        "qkv_layout": "joined",
        "rms_norm_eps": config.get("layer_norm_epsilon", _NORM_EPS),
        "rope_theta": read_number(config, "rotary_emb_base", 10000.0),
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", False)),
        "torch_dtype": config.get("torch_dtype"),
        "trained_length": trained,
        "use_logn_attn": is_scaled,
        "vocab_size": read_count(config, "vocab_size"),
    }


def read_qwen_vl(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of a LLaVA with this decoder, and with the sizes of the tower as those of a CLIP. Raises
    `CheckpointError` naming what is not supported."""
    visual = config["visual"]
    if not isinstance(visual, Mapping):
        raise CheckpointError(f"visual must be an object, got {str(visual)[:40]!r}")
    sizes = {name: read_count({"n_queries": 256, **visual}, name, most=most) for name, most in _MOST.items()}
    side, patch, size = (sizes[name] for name in ("image_size", "patch_size", "output_dim"))
    if side % patch or side // patch > _MOST_PATCHES:
        raise CheckpointError(f"visual.image_size={side} must be 1 to {_MOST_PATCHES} patches of {patch} pixels")
    if math.isqrt(sizes["n_queries"]) ** 2 != sizes["n_queries"]:
        raise CheckpointError(f"visual.n_queries={sizes['n_queries']} must be a square")
    text = read_qwen(config)
    if size != text["hidden_size"] or size % _QUERY_HEAD_SIZE:
        raise CheckpointError(
            f"visual.output_dim={size} must be a multiple of {_QUERY_HEAD_SIZE} and equal to hidden_size="
            f"{text['hidden_size']}"
        )
    tower = {
        "model_type": "clip_vision_model",
        "hidden_act": "gelu",
        "hidden_size": sizes["width"],
        "image_size": side,
        "intermediate_size": max(1, int(sizes["width"] * read_number(visual, "mlp_ratio", 4.0))),
        "layer_norm_eps": _NORM_EPS,
        "num_attention_heads": sizes["heads"],
        "num_hidden_layers": sizes["layers"],
        "patch_size": patch,
    }
    return {
        "architectures": config.get("architectures"),
        "model_type": "llava",
        "num_queries": sizes["n_queries"],
        "num_query_heads": size // _QUERY_HEAD_SIZE,
        "text_config": text,
        "tie_word_embeddings": text["tie_word_embeddings"],
        "vision_config": tower,
    }

"""Check the numbers in a checkpoint's config.json before anything is built from them, even Transformers' config object.

This module knows the names of fields and plausible values, not models. Whether the numbers fit the tensors is checked
when the tensors are read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seesay.errors import CheckpointError

_MOST_LAYERS, _MOST_HEADS, _MOST_SIZE, _MOST_POSITIONS = 1 << 10, 1 << 12, 1 << 20, 1 << 30

_COUNTS: Mapping[str, int] = {
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth"), _MOST_LAYERS),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "num_heads", "head_dim"), _MOST_HEADS),
    **dict.fromkeys(("num_kv_heads", "multi_query_group_num", "kv_channels", "n_head", "n_heads"), _MOST_HEADS),
    **dict.fromkeys(("hidden_size", "intermediate_size", "embed_dim", "out_hidden_size"), _MOST_SIZE),
    **dict.fromkeys(("ffn_hidden_size", "dim_model_base", "mlp_dim", "output_channels", "d_model"), _MOST_SIZE),
    **dict.fromkeys(("max_position_embeddings", "original_max_position_embeddings", "seq_length"), _MOST_POSITIONS),
    "max_seq_len": _MOST_POSITIONS,
    "expansion_ratio": 1 << 8,
    **dict.fromkeys(("vocab_size", "padded_vocab_size"), 1 << 24),
    "sliding_window": _MOST_POSITIONS,
    "window_size": 1 << 16,
    "image_size": 1 << 14,
    **dict.fromkeys(("patch_size", "spatial_patch_size"), 1 << 12),
    **dict.fromkeys(("temporal_patch_size", "spatial_merge_size", "in_channels", "in_chans", "num_channels"), 1 << 8),
    "hidden_stride": 1 << 8,
    **dict.fromkeys(("mamba_n_heads", "mamba_n_groups", "linear_num_key_heads", "linear_num_value_heads"), _MOST_HEADS),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "mamba_d_state"), _MOST_HEADS),
    **dict.fromkeys(("mamba_num_heads", "mamba_head_dim", "ssm_state_size"), _MOST_HEADS),
    "moe_shared_expert_intermediate_size": _MOST_SIZE,
    **dict.fromkeys(("mamba_expand", "mamba_d_conv", "linear_conv_kernel_dim", "conv_L_cache"), 1 << 8),
    "num_visual_indicator_tokens": 1 << 8,
}
"""Fields that hold an integer of at least 1, or two (height and width), with the largest plausible value."""

_MAY_BE_NONE = ("sliding_window",)
"""Fields in which 0 means that the option is off."""

_POSITIVE: Mapping[str, float] = {
    "rope_theta": 1e18,
    "factor": 1e6,
    "attention_factor": 1e6,
    "partial_rotary_factor": 1.0,
    "short_factor": 1e9,
    "long_factor": 1e9,
    "mlp_ratio": 1e3,
    "downsample_ratio": 64.0,
    "alibi_bias_max": 64,
    "softmax_scale": 1e6,
    "attn_logit_softcapping": 1e6,
    "final_logit_softcapping": 1e6,
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"), 1e6),
    **dict.fromkeys(("scale_emb", "scale_depth", "logit_scale", "clip_qkv", "rope_ratio"), 1e6),
}
"""Fields that hold a number above 0, or a list of such numbers, with the largest plausible value."""

_FROM_ZERO: Mapping[str, float] = {
    **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_epsilon"), 1.0),
    "tokens_per_second": 1e6,
}

_MAX_DEPTH = 4
"""Nesting depth of configurations: text_config, rope_parameters, a layer type."""


def check_numbers(file: Path, config: Mapping[str, Any], *, at: str = "", depth: int = 0) -> None:
    """Raise `CheckpointError` for the first field of `config`, or of a nested config, without a plausible number.

    null is skipped: it means Transformers' default.
    """
    for name, value in config.items():
        place = f"{at}{name}"
        if isinstance(value, Mapping):
            if depth < _MAX_DEPTH:
                check_numbers(file, value, at=f"{place}.", depth=depth + 1)
        elif value is not None and (rule := _find_broken_rule(name, value)):
            raise CheckpointError(f"{file}: {place} must be {rule}, got {_show(value)}")


def _find_broken_rule(name: str, value: Any) -> str | None:
    """Return what the field must be, where `value` is not; None for a plausible value and for unknown fields."""
    if name in _COUNTS:
        least, most = int(name not in _MAY_BE_NONE), _COUNTS[name]
        is_right = all(_is_whole(item) and least <= item <= most for item in _items(value))
        need = f"an integer from {least} to {most}"
    elif name in _POSITIVE:
        is_right = all(_is_finite(item) and 0 < item <= _POSITIVE[name] for item in _items(value))
        need = f"a number above 0, at most {_POSITIVE[name]:g}"
    elif name in _FROM_ZERO:
        is_right = _is_finite(value) and 0 <= value <= _FROM_ZERO[name]
        need = f"a number from 0 to {_FROM_ZERO[name]:g}"
    else:
        return None
    return None if is_right else need


def _items(value: object) -> list[Any]:
    """Return the numbers in `value`. An empty list gives one entry that is not a number."""
    if not isinstance(value, list):
        return [value]
    return value or [None]


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

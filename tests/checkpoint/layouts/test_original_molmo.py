"""Configurations of Molmo, read as Transformers' LLaVA."""

from __future__ import annotations

from typing import Any

import pytest

from seesay.checkpoint.layouts.config_conversion import read_as_known
from seesay.errors import CheckpointError

MOLMO: dict[str, Any] = {
    "architectures": ["MolmoForCausalLM"], "model_type": "molmo", "attention_layer_norm": False, "clip_qkv": None,
    "embedding_size": 152064, "hidden_size": 3584, "intermediate_size": 37888, "layer_norm_eps": 1e-06,
    "layer_norm_type": "rms", "max_position_embeddings": 4096, "norm_after": False, "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "qkv_bias": True, "rope_theta": 1000000.0,
    "tie_word_embeddings": False, "use_position_ids": True, "vocab_size": 152064, "weight_tying": False,
}  # fmt: skip
OLMO = {
    **MOLMO, "attention_layer_norm": True, "embedding_size": 100352, "norm_after": True, "num_key_value_heads": None,
    "qkv_bias": False, "vocab_size": 100278,
}  # fmt: skip


def test_the_norms_tell_the_decoder() -> None:
    for config, kind, heads, size in ((MOLMO, "qwen2", 4, 152064), (OLMO, "olmo2", 28, 100352)):
        text = read_as_known(config).config["text_config"]
        assert (text["model_type"], text["num_key_value_heads"], text["vocab_size"]) == (kind, heads, size)
        assert (text["intermediate_size"], text["rms_norm_eps"], text["rope_theta"]) == (18944, 1e-6, 1e6)


def test_the_tower_has_the_sizes_of_the_published_code() -> None:
    found = read_as_known(MOLMO).config
    vision = found["vision_config"]
    assert (vision["num_hidden_layers"], vision["image_size"], vision["patch_size"]) == (23, 336, 14)
    assert found["vision_feature_layer"] == [-2, -9]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_norm_type": "default"}, "layer_norm_type must be 'rms', got 'default'"),
        ({"moe_num_experts": 64}, "moe_num_experts must be None, got '64'"),
        ({"weight_tying": True}, "weight_tying must be False, got 'True'"),
        ({"clip_qkv": 8.0}, "clip_qkv must be None, got '8.0'"),
        ({"norm_after": True}, "got True, False and True"),
        ({"qkv_bias": False}, "got False, False and False"),
        ({"intermediate_size": 37889}, "intermediate_size must be even"),
        ({"hidden_size": "large"}, "hidden_size must be a positive integer, got 'large'"),
        ({"vision_config": []}, r"vision_config must be an object, got '\[\]'"),
    ],
)
def test_other_values_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_as_known({**MOLMO, **changes})

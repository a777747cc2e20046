"""Configurations of InternLM-XComposer2, read as Transformers' LLaVA."""

from __future__ import annotations

from typing import Any

import pytest

from seesay.checkpoint.layouts.config_conversion import read_as_known
from seesay.errors import CheckpointError

COMPOSER: dict[str, Any] = {
    "architectures": ["InternLMXComposer2ForCausalLM"], "model_type": "internlm2", "bias": False, "hidden_size": 4096,
    "img_size": 490, "intermediate_size": 14336, "internlm_lora": None, "max_length": 4096,
    "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 1000000, "tie_word_embeddings": False,
    "vocab_size": 92544,
}  # fmt: skip


def test_the_architecture_is_that_of_the_code() -> None:
    """4KHD's config.json has the text model's."""
    own = {**COMPOSER, "architectures": ["InternLM2ForCausalLM"], "model_type": "internlmxcomposer2"}
    found = read_as_known(own).config
    assert found["architectures"] == ["InternLMXComposer2ForCausalLM"] and "vision_config" in found
    assert read_as_known({**own, "model_type": "internlm2"}).config["architectures"] == ["InternLM2ForCausalLM"]


def test_the_decoder_is_an_internlm2() -> None:
    text = read_as_known(COMPOSER).config["text_config"]
    assert (text["model_type"], text["qkv_layout"], text["attention_bias"]) == ("llama", "grouped", False)
    assert (text["rope_theta"], text["num_key_value_heads"], text["vocab_size"]) == (1000000, 8, 92544)
    assert not {"img_size", "max_length", "internlm_lora"} & text.keys()


def test_the_tower_has_the_sizes_of_the_published_code() -> None:
    found = read_as_known(COMPOSER).config
    vision = found["vision_config"]
    assert (vision["hidden_size"], vision["num_hidden_layers"], vision["patch_size"]) == (1024, 24, 14)
    assert (found["vision_feature_layer"], found["vision_feature_select_strategy"]) == (-1, "default")
    other = read_as_known({**COMPOSER, "vision_config": {"hidden_size": 32}}).config["vision_config"]
    assert (other["hidden_size"], other["patch_size"]) == (32, 14)


def test_a_tower_that_is_no_object_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"vision_config must be an object, got '\[\]'"):
        read_as_known({**COMPOSER, "vision_config": []})

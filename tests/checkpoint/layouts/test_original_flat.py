"""Configurations of MiniCPM-V, Phi-3-vision and CogVLM, read as Transformers' LLaVA."""

from __future__ import annotations

from typing import Any

import pytest

from seesay.checkpoint.layouts.config_conversion import read_as_known
from seesay.errors import CheckpointError

MINICPM: dict[str, Any] = {
    "model_type": "minicpmv",
    "hidden_size": 256,
    "query_num": 64,
    "vision_config": {"image_size": 980},
}
PHI: dict[str, Any] = {
    "model_type": "phi3_v",
    "hidden_size": 3072,
    "embd_layer": {
        "embedding_cls": "image", "hd_transform_order": "sub_glb", "projection_cls": "mlp", "use_hd_transform": True,
        "with_learnable_separator": True,
    },
    "img_processor": {"model_name": "openai/clip-vit-large-patch14-336", "name": "clip_vision_model"},
}  # fmt: skip

COGVLM: dict[str, Any] = {
    "architectures": ["CogVLMForCausalLM"],
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "vision_config": {
        "hidden_size": 1792, "image_size": 490, "in_channels": 3, "num_heads": 16, "num_positions": 1226,
        "patch_size": 14,
    },
    "vocab_size": 32000,
}  # fmt: skip


@pytest.mark.parametrize(
    ("version", "decoder"),
    [({}, "llama"), ({"version": 2.6}, "qwen2"), ({"version": "2.6"}, "qwen2"), ({"version": 4.0}, "llama"),
     ({"version": 4}, "llama"), ({"version": 4.5}, "qwen3")],
)  # fmt: skip
def test_the_version_of_minicpmv_tells_its_decoder(version: dict[str, Any], decoder: str) -> None:
    found = read_as_known({**MINICPM, **version}).config
    assert (found["model_type"], found["text_config"]["model_type"]) == ("llava", decoder)
    assert found["text_config"]["hidden_size"] == 256 and "vision_config" not in found["text_config"]
    assert found["vision_config"] == {"image_size": 980, "model_type": "siglip_vision_model"}


def test_the_clip_of_phi3_vision_is_called_by_its_name() -> None:
    vision = read_as_known(PHI).config["vision_config"]
    assert (vision["hidden_size"], vision["num_hidden_layers"], vision["image_size"]) == (1024, 24, 336)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (COGVLM, (32, 10000.0, 0, 1, False)),
        ({**COGVLM, "pad_token_id": 3}, (32, 10000.0, 3, 1, False)),
        ({**COGVLM, "vocab_size": 128256, "pad_token_id": 128002}, (8, 500000.0, 128002, 2, True)),
        ({**COGVLM, "vocab_size": 128256, "num_multi_query_heads": 4}, (4, 500000.0, 128002, 2, True)),
    ],
)
def test_the_second_cogvlm_is_known_by_its_vocabulary(config: dict[str, Any], expected: tuple[Any, ...]) -> None:
    found = read_as_known(config).config
    text = found["text_config"]
    assert (text["model_type"], text["qkv_layout"], text["hidden_size"]) == ("llama", "joined", 4096)
    assert (
        text["num_key_value_heads"], text["rope_theta"], found["image_token_index"], found["row_merge"],
        found["has_expert_bias"],
    ) == expected  # fmt: skip


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**COGVLM, "num_attention_heads": None}, "num_attention_heads must be a positive integer, got 'None'"),
        ({**COGVLM, "num_multi_query_heads": "8"}, "num_multi_query_heads must be a positive integer, got '8'"),
        (
            {**COGVLM, "vision_config": {**COGVLM["vision_config"], "num_positions": 1225}},
            "num_positions=1225 must be 1 more than the patches of image_size=490 and patch_size=14",
        ),
        ({**MINICPM, "version": 2.0}, "version must be one of 2.5, 2.6, 4.0, 4.5, got '2.0'"),
        ({**MINICPM, "query_num": "many"}, "query_num must be an integer from 1 to 4096, got 'many'"),
        ({**MINICPM, "vision_config": None}, "vision_config must be an object, got 'None'"),
        ({**PHI, "img_processor": {"model_name": "other"}}, "model_name must be one of openai/clip-vit.*, got 'other'"),
        ({**PHI, "img_processor": []}, r"img_processor must be an object, got '\[\]'"),
        (
            {**PHI, "embd_layer": {"hd_transform_order": "glb_sub"}},
            "hd_transform_order must be 'sub_glb', got 'glb_sub'",
        ),
    ],
)
def test_other_values_are_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_as_known(config)

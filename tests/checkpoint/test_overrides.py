"""Overrides reach the part of config.json that has their field, under its name there; others are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from seesay.checkpoint.checkpoint import Checkpoint
from seesay.errors import CheckpointError

TEXT = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
}  # fmt: skip
STORED = {"rope_theta": 40.0, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
SAVED = {"rope_parameters": {"rope_theta": 40.0, "rope_type": "default", "mrope_section": [2, 3, 3]}}
YARN = {"factor": 2.0, "original_max_position_embeddings": 128}
HEAD = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "vision_config": {"depth": 2},
}
FORMS = {
    "flat, stored": {**HEAD, **TEXT, **STORED},
    "flat, saved": {**HEAD, **TEXT, **SAVED},
    "nested, stored": {**HEAD, "text_config": {**TEXT, **STORED}},
    "nested, saved": {**HEAD, "text_config": {**TEXT, **SAVED}},
    "both": {**HEAD, **TEXT, **STORED, "text_config": {**TEXT, **SAVED}},
}


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Checkpoint]:
    def load(config: Any, overrides: Any) -> Checkpoint:
        (tmp_path / "config.json").write_text(json.dumps(config))
        save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
        return Checkpoint.load(tmp_path, overrides)

    return load


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize(
    "rotary",
    [
        {"rope_scaling": {"rope_type": "yarn", **YARN}},
        {"rope_scaling": {"type": "yarn", **YARN}},
        {"rope_parameters": {"rope_type": "yarn", **YARN}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 50.0, **YARN}},
        {"rope_theta": 50.0, "rope_scaling": {"rope_type": "yarn", **YARN}},
    ],
)
def test_settings_of_the_text_model_are_overridden_wherever_they_are(
    load: Callable[..., Checkpoint], form: str, is_nested: bool, rotary: dict[str, Any]
) -> None:
    wanted = {**rotary, "max_position_embeddings": 256, "rms_norm_eps": 1e-3}
    text = load(FORMS[form], {"text_config": wanted} if is_nested else wanted).text_config
    assert (text.max_position_embeddings, text.rms_norm_eps, text.hidden_size) == (256, 1e-3, 64)
    theta = 50.0 if "50.0" in str(rotary) else 40.0
    expected = {"rope_type": "yarn", "rope_theta": theta, "mrope_section": [2, 3, 3], **YARN}
    assert {name: text.rope_parameters[name] for name in expected} == expected


def test_text_parts_of_other_names_are_meant_too(load: Callable[..., Checkpoint]) -> None:
    config = {"architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "llm_config": TEXT | STORED}
    for overrides in ({"rms_norm_eps": 1e-3}, {"text_config": {"rms_norm_eps": 1e-3}}):
        assert load(config, overrides).config["llm_config"] == TEXT | STORED | {"rms_norm_eps": 1e-3}


def test_fields_of_the_root_stay_there(load: Callable[..., Checkpoint]) -> None:
    checkpoint = load(FORMS["nested, saved"], {"tie_word_embeddings": True, "image_token_id": 7, "dtype": "float32"})
    assert checkpoint.model_config.tie_word_embeddings and checkpoint.model_config.image_token_id == 7
    assert checkpoint.config["dtype"] == "float32" and checkpoint.config["text_config"] == TEXT | SAVED


@pytest.mark.parametrize(
    ("form", "overrides", "error"),
    [
        ("flat, saved", {"max_positions": 5}, r"max_positions: neither config\.json nor Qwen2_5_VLConfig"),
        ("nested, saved", {"text_config": {"rope": 5}}, r"hf_overrides\.text_config\.rope: neither"),
        ("nested, saved", {"patch_size": 5}, r"patch_size: .*write \{'vision_config': \{'patch_size': …\}\}"),
        ("nested, saved", {"rms_norm_eps": 1, "text_config": {"rms_norm_eps": 1}}, r"text_config\.rms_norm_eps is gi"),
        ("flat, saved", {"rms_norm_eps": 1, "text_config": {"rms_norm_eps": 1}}, r"overrides\.rms_norm_eps is give"),
        ("flat, saved", {"rope_scaling": None}, r"rope_scaling: config\.json has rope_parameters instead"),
        ("flat, saved", {"rope_theta": 5.0, "rope_parameters": {"rope_theta": 6.0}}, r"parameters\.rope_theta is giv"),
        ("nested, saved", {"text_config": 3, "rms_norm_eps": 1}, r"text_config must be a dict, as in config\.json"),
    ],
)  # fmt: skip
def test_an_override_that_would_change_nothing_is_refused_by_name(
    load: Callable[..., Checkpoint], form: str, overrides: dict[str, Any], error: str
) -> None:
    with pytest.raises(CheckpointError, match=error):
        _ = load(FORMS[form], overrides).model_config


def test_a_rotary_embedding_per_kind_of_layer_is_overridden_by_its_own_names(load: Callable[..., Checkpoint]) -> None:
    kinds = {"full_attention": {"rope_type": "default", "rope_theta": 40.0}}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **TEXT, "rope_parameters": kinds}
    with pytest.raises(CheckpointError, match=r"hf_overrides\.rope_theta: .*fields \(full_attention\) are to be"):
        load(config, {"rope_theta": 5.0})
    found = load(config, {"rope_parameters": {"full_attention": {"rope_theta": 5.0}}}).config["rope_parameters"]
    assert found == {"full_attention": {"rope_type": "default", "rope_theta": 5.0}}

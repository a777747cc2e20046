"""Configurations of MiniCPM-V and Phi-3-vision, read as Transformers' LLaVA."""

from __future__ import annotations

from typing import Any

import pytest

from seesay.checkpoint.stand_ins import read_as_known
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
    ("config", "message"),
    [
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

"""`model_format` is checked against the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from quantized_folders import FORMS, PACKED_FORMS
from safetensors.torch import save_file

from seesay import pipeline
from seesay.checkpoint import Checkpoint
from seesay.config import EngineConfig, TurbomindEngineConfig
from seesay.errors import ConfigError

CONFIGS = {
    "hf": None,
    "awq": PACKED_FORMS["awq, groups of 32"].config,
    "gptq": PACKED_FORMS["gptq, symmetric"].config,
    "compressed-tensors": PACKED_FORMS["pack-quantized, groups of 32"].config,
    "fp8": FORMS["fp8, tensors"].config,
}


def open_folder(folder: Path, settings: Any, **options: Any) -> Checkpoint:
    config = {"model_type": "llama", **({} if settings is None else {"quantization_config": settings})}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"a": torch.zeros(2)}, folder / "model.safetensors")
    return Checkpoint.load(folder, **options)


@pytest.mark.parametrize("stored", CONFIGS)
def test_only_the_stored_format_is_accepted(stored: str, tmp_path: Path) -> None:
    checkpoint = open_folder(tmp_path, CONFIGS[stored])
    checkpoint.expect_format(None)
    checkpoint.expect_format(stored)
    found = "plain" if stored == "hf" else rf"quantized \({stored}\)"
    for other in CONFIGS.keys() - {stored}:
        with pytest.raises(ConfigError, match=f"model_format='{other}': the weights in .* are {found}"):
            checkpoint.expect_format(other)


def test_fp8_is_a_format_of_compressed_tensors_too(tmp_path: Path) -> None:
    checkpoint = open_folder(tmp_path, FORMS["compressed-tensors, channels"].config)
    checkpoint.expect_format("compressed-tensors")
    checkpoint.expect_format("fp8")


def test_weights_that_are_quantized_in_flight_are_stored_plain(tmp_path: Path) -> None:
    checkpoint = open_folder(tmp_path, None, quantization="fp8")
    checkpoint.expect_format("hf")
    with pytest.raises(ConfigError, match="are plain: to quantize them while they are loaded, set quantization='fp8'"):
        checkpoint.expect_format("fp8")


@pytest.mark.parametrize("name", ["awq", "gptq"])
def test_plain_weights_are_sent_to_lite(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"are plain: `seesay lite auto_{name}` quantizes them"):
        open_folder(tmp_path, None).expect_format(name)


def test_both_configurations_have_it() -> None:
    assert EngineConfig(model_format="awq").model_format == "awq"
    assert TurbomindEngineConfig(model_format="gptq").to_engine_config().model_format == "gptq"
    for config in (EngineConfig, TurbomindEngineConfig):
        with pytest.raises(ConfigError, match=r"model_format must be .*'meta_llama'"):
            config(model_format="meta_llama")  # type: ignore[arg-type]


def test_a_pipeline_says_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match=r"model_format='awq': the weights in .* are plain"):
        pipeline("seesay-demo", backend_config=EngineConfig(model_format="awq", device_type="cpu"))

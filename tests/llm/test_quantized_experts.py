"""Mixtures of experts in the formats that are published: against Transformers with the same weights multiplied out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pairs
import pytest
import torch
from expert_folders import (
    IN_BLOCKS,
    copy_edited,
    narrow,
    quantize_experts,
    stack,
    stack_blocks,
    unstack,
)
from lite.reading import logits_of, reference_logits
from llm import backbones
from quantized_folders import (
    FORMS,
    PACKED_FORMS,
    edit_tensors,
)

from seesay.config import EngineConfig
from seesay.engine.core.loading.resolved_config import resolve
from seesay.engine.core.loading.runner_loading import load_runner
from seesay.engine.opened_model import open_model
from seesay.errors import CheckpointError

STACKED = ("qwen3_vl_moe",)
ALL = {**FORMS, **PACKED_FORMS}


def check(quantized: Path, plain: Path, source: Path) -> None:
    expected = reference_logits(plain)
    torch.testing.assert_close(logits_of(quantized), expected, atol=1e-3, rtol=0)
    assert (expected - logits_of(source)).abs().max() > 1e-2, "the weights were not quantized"


@pairs.parametrize_sweep(
    model=["mixtral", "qwen3_moe", "qwen3_vl_moe", "glm4v_moe"],
    form=[
        "awq, groups of 32",
        "gptq, symmetric",
        "gptq, in order of activations",
        "pack-quantized, groups of 32",
        "pack-quantized, zero points",
        "fp8, small blocks",
        "compressed-tensors, channels",
    ],
)
def test_experts_one_by_one(model: str, form: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """As tools publish them, also of models whose plain experts are in one tensor."""
    source = tiny_checkpoint(model)
    if model in STACKED:
        source = copy_edited(source, tmp_path / "numbered", unstack)
    quantized, plain = quantize_experts(source, tmp_path, ALL[form])
    if model in STACKED:
        edit_tensors(plain, stack)
    check(quantized, plain, tiny_checkpoint(model))


@pytest.mark.parametrize("is_turned", [False, True])
def test_experts_in_one_tensor_in_fp8(is_turned: bool, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """As Qwen publishes Qwen3-VL-MoE (turned), and as Transformers has them in memory."""
    source = narrow(tiny_checkpoint("qwen3_vl_moe"), tmp_path / "narrow")
    quantized, plain = quantize_experts(source, tmp_path, IN_BLOCKS)
    stack_blocks(quantized, plain, is_turned=is_turned)
    check(quantized, plain, source)
    methods = list_methods(quantized)
    assert {name for path, name in methods.items() if ".experts." in path} == {"fp8 block"}


def test_plain_experts_beside_quantized_layers(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """As tools leave experts that are not linear layers to them, without saying so."""
    quantized, plain = quantize_experts(
        tiny_checkpoint("qwen3_vl_moe"), tmp_path, FORMS["compressed-tensors, channels"]
    )
    check(quantized, plain, tiny_checkpoint("qwen3_vl_moe"))


@pytest.mark.parametrize("model", ["mixtral", "qwen3_moe", "glm4v_moe"])
def test_plain_experts_in_the_other_layout(model: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    source = tiny_checkpoint(model)
    assert torch.equal(logits_of(copy_edited(source, tmp_path / "stacked", stack)), logits_of(source))


def test_plain_experts_of_a_stacked_model_one_by_one(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    source = tiny_checkpoint("qwen3_vl_moe")
    assert torch.equal(logits_of(copy_edited(source, tmp_path / "numbered", unstack)), logits_of(source))


def list_methods(path: Path, **options: Any) -> dict[str, str]:
    config = EngineConfig(device_type="cpu", **options)
    model = open_model(path, config)
    resolved = resolve(config, model.checkpoint, model.backbone)
    runner = load_runner(model, resolved, max_step_tokens=64, block_size=16)
    return {path: linear.method.name for path, linear in backbones.composed(runner).linears.items()}


@pytest.mark.parametrize("model", ["qwen3_vl_moe", "qwen3_moe"])
def test_experts_are_quantized_in_flight(model: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    methods = list_methods(tiny_checkpoint(model), quantization="fp8")
    of_experts = {name for path, name in methods.items() if ".experts." in path}
    assert of_experts == {"fp8 in flight"}


def test_a_missing_tensor_of_an_expert_is_named(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    quantized, _ = quantize_experts(tiny_checkpoint("mixtral"), tmp_path, PACKED_FORMS["awq, groups of 32"])
    name = "model.layers.1.block_sparse_moe.experts.2.w3.qzeros"
    edit_tensors(quantized, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match="is missing"):
        logits_of(quantized)

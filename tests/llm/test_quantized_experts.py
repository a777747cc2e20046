"""Mixtures of experts in the formats that are published: against Transformers with the same weights multiplied out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pairs
import pytest
import torch
from expert_folders import Tensors, copy_edited, stack, unstack
from lite.reading import logits_of, read_config, reference_logits
from llm import backbones
from quantized_folders import (
    FORMS,
    PACKED_FORMS,
    Form,
    edit_tensors,
    is_quantized,
    per_block,
    set_config,
    write_quantized,
)

from seesay.config import EngineConfig
from seesay.engine.core.loading.resolved_config import resolve
from seesay.engine.core.loading.runner_loading import load_runner
from seesay.engine.opened_model import open_model
from seesay.errors import CheckpointError

IGNORED = ["lm_head", "re:.*visual.*", "re:.*(mlp|block_sparse_moe)\\.gate$"]
STACKED = ("qwen3_vl_moe",)
ALL = {**FORMS, **PACKED_FORMS}
BLOCKS = per_block(16, 16, "weight_scale_inv")


def quantize(source: Path, folder: Path, form: Form) -> tuple[Path, Path]:
    """Write a folder in this form, and its reference; as tools list what they leave alone."""
    quantized, plain = write_quantized(source, folder, form, lambda name: "visual" not in name and is_quantized(name))
    key = "ignore" if "ignore" in form.config else "modules_to_not_convert"
    set_config(quantized, quantization_config={**form.config, key: IGNORED})
    return quantized, plain


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
    quantized, plain = quantize(source, tmp_path, ALL[form])
    if model in STACKED:
        edit_tensors(plain, stack)
    check(quantized, plain, tiny_checkpoint(model))


def narrow(source: Path, folder: Path) -> Path:
    """Write the model with half of the inner components of its experts, so that no matrix of theirs is square."""

    def edit(tensors: Tensors) -> None:
        for name in [name for name in tensors if ".experts." in name]:
            halves = tensors[name].chunk(2, dim=1) if "gate_up" in name else [tensors[name].transpose(1, 2)]
            kept = torch.cat([half[:, : half.shape[1] // 2] for half in halves], dim=1)
            tensors[name] = (kept if "gate_up" in name else kept.transpose(1, 2)).contiguous()

    copy_edited(source, folder, edit)
    text_config = read_config(folder)["text_config"]
    inner = text_config["moe_intermediate_size"] // 2
    set_config(folder, text_config={**text_config, "moe_intermediate_size": inner})
    return folder


@pytest.mark.parametrize("is_turned", [False, True])
def test_experts_in_one_tensor_in_fp8(is_turned: bool, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """As Qwen publishes Qwen3-VL-MoE (turned), and as Transformers has them in memory."""
    source = narrow(tiny_checkpoint("qwen3_vl_moe"), tmp_path / "narrow")
    form = Form({**FORMS["fp8, small blocks"].config, "weight_block_size": [16, 16]}, BLOCKS)
    quantized, plain = quantize(source, tmp_path, form)
    exact: Tensors = {}

    def edit(tensors: Tensors) -> None:
        for name in [name for name in tensors if ".experts." in name]:
            found = [BLOCKS(weight.float()) for weight in tensors[name]]
            exact[name] = torch.stack([weight for _, weight in found])
            for part, suffix in (("weight", ""), ("weight_scale_inv", "_scale_inv")):
                whole = torch.stack([tensors[part] for tensors, _ in found])
                tensors[f"{name}{suffix}"] = (whole.transpose(1, 2) if is_turned else whole).contiguous()

    edit_tensors(quantized, edit)
    edit_tensors(plain, lambda tensors: tensors.update(exact))
    check(quantized, plain, source)
    methods = list_methods(quantized)
    assert {name for path, name in methods.items() if ".experts." in path} == {"fp8 block"}


def test_plain_experts_beside_quantized_layers(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """As tools leave experts that are not linear layers to them, without saying so."""
    quantized, plain = quantize(tiny_checkpoint("qwen3_vl_moe"), tmp_path, FORMS["compressed-tensors, channels"])
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
    quantized, _ = quantize(tiny_checkpoint("mixtral"), tmp_path, PACKED_FORMS["awq, groups of 32"])
    name = "model.layers.1.block_sparse_moe.experts.2.w3.qzeros"
    edit_tensors(quantized, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match="is missing"):
        logits_of(quantized)

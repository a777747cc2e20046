"""Checkpoints with experts in the other layout, one by one, or in tensors of all of them, and with quantized ones."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from quantized_folders import FORMS, Form, edit_tensors, is_quantized, per_block, set_config, write_quantized

Tensors = dict[str, torch.Tensor]
IN_BLOCKS = Form(
    {**FORMS["fp8, small blocks"].config, "weight_block_size": [16, 16]}, per_block(16, 16, "weight_scale_inv")
)
_LEFT_PLAIN = ["lm_head", "re:.*visual.*", "re:.*(mlp|block_sparse_moe)\\.gate$"]
_STACK = re.compile(r"(.*\.experts)\.(gate_up|down)_proj")
_ONE = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")
_HALVES = {"gate": "w1", "up": "w3", "down": "w2"}


def copy_edited(source: Path, folder: Path, edit: Callable[[Tensors], None]) -> Path:
    shutil.copytree(source, folder)
    edit_tensors(folder, edit)
    return folder


def unstack(tensors: Tensors) -> None:
    """Store experts [experts, outputs, inputs] one by one."""
    for name in list(tensors):
        if match := _STACK.fullmatch(name):
            for expert, weight in enumerate(tensors.pop(name)):
                halves = [weight] if match[2] == "down" else weight.chunk(2)
                for half, piece in zip(["down"] if match[2] == "down" else ["gate", "up"], halves, strict=True):
                    tensors[f"{match[1]}.{expert}.{half}_proj.weight"] = piece.contiguous()


def stack(tensors: Tensors) -> None:
    """Store experts in two tensors for all of them, [experts, outputs, inputs]."""
    layers: dict[str, dict[int, Tensors]] = {}
    for name in list(tensors):
        if match := _ONE.fullmatch(name):
            layers.setdefault(match[1], {}).setdefault(int(match[2]), {})[match[3]] = tensors.pop(name)
    for layer, experts in layers.items():
        ordered = [experts[number] for number in range(len(experts))]
        gate, up, down = (
            torch.stack([_pick(expert, f"{half}_proj", _HALVES[half]) for expert in ordered])
            for half in ("gate", "up", "down")
        )
        tensors |= {f"{layer}.gate_up_proj": torch.cat((gate, up), dim=1), f"{layer}.down_proj": down}


def _pick(tensors: Tensors, *names: str) -> torch.Tensor:
    [found] = [tensors[name] for name in names if name in tensors]
    return found


def narrow(source: Path, folder: Path) -> Path:
    """Write the model with half of the inner components of its experts, so that no matrix of theirs is square."""

    def edit(tensors: Tensors) -> None:
        for name in [name for name in tensors if ".experts." in name]:
            halves = tensors[name].chunk(2, dim=1) if "gate_up" in name else [tensors[name].transpose(1, 2)]
            kept = torch.cat([half[:, : half.shape[1] // 2] for half in halves], dim=1)
            tensors[name] = (kept if "gate_up" in name else kept.transpose(1, 2)).contiguous()

    copy_edited(source, folder, edit)
    text_config = json.loads((folder / "config.json").read_text())["text_config"]
    inner = text_config["moe_intermediate_size"] // 2
    set_config(folder, text_config={**text_config, "moe_intermediate_size": inner})
    return folder


def quantize_experts(source: Path, folder: Path, form: Form) -> tuple[Path, Path]:
    """Write a model with experts in this form, and plain with the same numbers; as tools list what they leave alone."""
    quantized, plain = write_quantized(source, folder, form, lambda name: "visual" not in name and is_quantized(name))
    key = "ignore" if "ignore" in form.config else "modules_to_not_convert"
    set_config(quantized, quantization_config={**form.config, key: _LEFT_PLAIN})
    return quantized, plain


def stack_blocks(quantized: Path, plain: Path, *, is_turned: bool) -> None:
    """Store plain experts in one tensor in the blocks of `IN_BLOCKS`, and their numbers in the plain folder. is_turned:
    with inputs before outputs, as Qwen publishes Qwen3-VL-MoE; else as Transformers has them in memory."""
    exact: Tensors = {}

    def edit(tensors: Tensors) -> None:
        for name in [name for name in tensors if ".experts." in name]:
            found = [IN_BLOCKS.quantize(weight.float()) for weight in tensors[name]]
            exact[name] = torch.stack([weight for _, weight in found])
            for part, suffix in (("weight", ""), ("weight_scale_inv", "_scale_inv")):
                whole = torch.stack([tensors[part] for tensors, _ in found])
                tensors[f"{name}{suffix}"] = (whole.transpose(1, 2) if is_turned else whole).contiguous()

    edit_tensors(quantized, edit)
    edit_tensors(plain, lambda tensors: tensors.update(exact))

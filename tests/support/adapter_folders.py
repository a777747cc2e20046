"""LoRA adapters as PEFT writes them, and checkpoints with them merged in, which answer alike."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

RANK, ALPHA = 4, 8


def read_weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    files = map(load_file, sorted(checkpoint.glob("*.safetensors")))
    return {name: tensor for found in files for name, tensor in found.items()}


def write_adapter(
    checkpoint: Path,
    folder: Path,
    modules: str,
    *,
    seed: int = 0,
    merged: Path | None = None,
    spell: Callable[[str], str] = str,
    use_dora: bool = False,
) -> Path:
    """Write an adapter of the modules of a checkpoint whose names match, and a checkpoint with it merged in. spell:
    makes the name that Transformers' module has of the stored one. use_dora: it has magnitudes."""
    generator = torch.Generator().manual_seed(seed)
    weights, tensors = read_weights(checkpoint), dict[str, torch.Tensor]()
    for name, weight in weights.items():
        module = name.removesuffix(".weight")
        if weight.dim() != 2 or not name.endswith(".weight") or re.fullmatch(modules, module) is None:
            continue
        a = torch.randn(RANK, weight.shape[1], generator=generator) * 0.2
        b = torch.randn(weight.shape[0], RANK, generator=generator) * 0.2
        own = f"base_model.model.{spell(module)}"
        tensors |= {f"{own}.lora_A.weight": a, f"{own}.lora_B.weight": b}
        total = weight.float() + ALPHA / RANK * b @ a
        if use_dora:
            magnitude = tensors[f"{own}.lora_magnitude_vector"] = torch.rand(len(weight), generator=generator) * 3
            total *= (magnitude / torch.linalg.vector_norm(total, dim=1))[:, None]
        weights[name] = total.to(weight.dtype)
    assert tensors, modules
    write_folder(folder, tensors, use_dora=use_dora)
    if merged is not None:
        shutil.copytree(checkpoint, merged, ignore=shutil.ignore_patterns("*.safetensors*"))
        save_file(weights, merged / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_folder(
    folder: Path, tensors: Mapping[str, torch.Tensor], *, rank: int = RANK, use_dora: bool = False
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": ALPHA * rank // RANK, "bias": "none", "use_dora": use_dora}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(dict(tensors), folder / "adapter_model.safetensors", metadata={"format": "pt"})

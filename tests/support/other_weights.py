"""Copies of checkpoints with other weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def write_weights(source: Path, folder: Path, weights: dict[str, torch.Tensor]) -> Path:
    """Write a folder with the files of `source` but these weights."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.index.json"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def copy_with_other_weights(
    source: Path, folder: Path, *, seed: int = 1, changes: Callable[[str], bool] = lambda name: True
) -> Path:
    """Write a copy of a checkpoint in which the weights that `changes` names are others of the same size."""
    generator = torch.Generator().manual_seed(seed)
    weights = read_weights(source)
    for name, tensor in weights.items():
        if changes(name) and tensor.is_floating_point():
            order = torch.randperm(tensor.numel(), generator=generator)
            weights[name] = tensor.flatten()[order].view(tensor.shape)
    return write_weights(source, folder, weights)

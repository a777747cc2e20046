"""Merges a LoRA adapter into the checkpoint that it was made for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.adapter_folder import AdapterFolder, LowRank
from seesay.checkpoint.model_path import resolve_checkpoint
from seesay.checkpoint.tensors import INDEX_FILE
from seesay.config.checks import require
from seesay.errors import CheckpointError
from seesay.lite.output import SUFFIXES
from seesay.lite.work_folder import copy_files, writing


def merge(
    model: str | os.PathLike[str], adapter: str | os.PathLike[str], work_dir: str | os.PathLike[str] = "./work_dir"
) -> Path:
    """Write the checkpoint of `model` with `adapter` added to its weights to `work_dir`, a new or an empty folder, and
    return that. Sums are computed in float32. Any linear layer may have an adapter, those of the vision tower, too,
    also with magnitudes (DoRA).
    Raises `CheckpointError` for an adapter that does not fit, and for a quantized model."""
    target = Path(work_dir)
    has_files = target.exists() and (not target.is_dir() or any(target.iterdir()))
    require(not has_files, "work_dir", str(target), "must be a new or an empty folder")
    checkpoint = Checkpoint.load(resolve_checkpoint(model))
    if checkpoint.quantization is not None:
        raise CheckpointError(
            f"{checkpoint.path}: its weights are quantized: merge the adapter into the plain checkpoint, and quantize "
            "that again, or serve this one with --adapters"
        )
    added = _find_weights(checkpoint, AdapterFolder.load(resolve_checkpoint(adapter)))
    files = sorted({tensor.file for tensor in checkpoint.stored.values()})
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
        for file in files:
            save_file(dict(_merge_file(checkpoint, file, added)), target / file.name, metadata={"format": "pt"})
        copy_files(checkpoint.path, target, SUFFIXES, leave_out=("config.json",))
        for name in (INDEX_FILE, "config.json"):  # last, as a folder without it is no model
            if (checkpoint.path / name).is_file():
                shutil.copyfile(checkpoint.path / name, target / name)
        for file in files:
            shutil.copymode(target / "config.json", target / file.name)
    return target


def _find_weights(checkpoint: Checkpoint, folder: AdapterFolder) -> Mapping[str, LowRank]:
    """Return what is added to weights, by their stored names."""
    found: dict[str, LowRank] = {}
    for module, low_rank in folder.modules.items():
        names = [name for spelled in folder.spell(module) if (name := f"{spelled}.weight") in checkpoint.stored]
        if not names:
            raise CheckpointError(f"{folder.path}: {checkpoint.path} has no weight of {module!r}")
        shape = checkpoint.stored[names[0]].shape
        if shape != (len(low_rank.b), low_rank.a.shape[1]):
            raise CheckpointError(
                f"{folder.path}: the adapter of {module!r} is for a weight {[len(low_rank.b), low_rank.a.shape[1]]}, "
                f"{names[0]!r} of {checkpoint.path} is {list(shape)}"
            )
        found[names[0]] = low_rank
    return found


def _merge_file(checkpoint: Checkpoint, file: Path, added: Mapping[str, LowRank]) -> Iterator[tuple[str, Tensor]]:
    names = [name for name, tensor in checkpoint.stored.items() if tensor.file == file]
    for name, slices in checkpoint.slices(names, torch.device("cpu")):
        weight = slices.read(tuple(map(range, checkpoint.stored[name].shape))).clone()
        if (low_rank := added.get(name)) is not None:
            total = weight.float().addmm_(low_rank.b.float(), low_rank.a.float(), alpha=low_rank.scale)
            if low_rank.magnitude is not None:
                total.mul_((low_rank.magnitude.float() / torch.linalg.vector_norm(total, dim=1))[:, None])
            weight = total.to(weight.dtype)
        yield name, weight

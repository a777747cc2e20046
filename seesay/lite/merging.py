"""Merges a LoRA adapter into the checkpoint that it was made for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from seesay.lite.methods.requantizing import check_parts, list_parts, requantize
from seesay.lite.output import SUFFIXES
from seesay.lite.work_folder import copy_files, writing


def merge(
    model: str | os.PathLike[str], adapter: str | os.PathLike[str], work_dir: str | os.PathLike[str] = "./work_dir"
) -> Path:
    """Write the checkpoint of `model` with `adapter` added to its weights to `work_dir`, a new or an empty folder, and
    return that. Sums are computed in float32. Any linear layer may have an adapter, those of the vision tower, too,
    also with magnitudes (DoRA). Quantized weights are rounded again, in the format that they have.
    Raises `CheckpointError` for an adapter that does not fit."""
    target = Path(work_dir)
    has_files = target.exists() and (not target.is_dir() or any(target.iterdir()))
    require(not has_files, "work_dir", str(target), "must be a new or an empty folder")
    checkpoint = Checkpoint.load(resolve_checkpoint(model))
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


def _find_weights(checkpoint: Checkpoint, folder: AdapterFolder) -> Mapping[str, _Merged]:
    """Return what is added to the weights of modules, by the stored names of these."""
    found: dict[str, _Merged] = {}
    for module, low_rank in folder.modules.items():
        merged = next(
            (each for name in folder.spell(module) if (each := _Merged.find(checkpoint, name, low_rank))), None
        )
        if merged is None:
            raise CheckpointError(f"{folder.path}: {checkpoint.path} has no weight of {module!r}")
        try:
            merged.check(checkpoint)
        except ValueError as error:
            raise CheckpointError(
                f"{folder.path}: the adapter of {module!r} is for a weight {list(merged.shape)}, "
                f"{merged.module!r} of {checkpoint.path} has {error}"
            ) from None
        found[merged.module] = merged
    return found


@dataclass(frozen=True, slots=True)
class _Merged:
    """A module of a checkpoint, and what is added to its weight. parts: the names of the tensors that stand for the
    weight of a quantized module, behind that of the module; none for a plain one."""

    module: str
    low_rank: LowRank
    parts: tuple[str, ...] = ()

    @classmethod
    def find(cls, checkpoint: Checkpoint, module: str, low_rank: LowRank) -> _Merged | None:
        """Return the module of this name, if the checkpoint has a weight of it."""
        if checkpoint.quantization is not None:
            names = list_parts(checkpoint.quantization)
            if f"{module}.{names[0]}" in checkpoint.stored:
                return cls(module, low_rank, tuple(name for name in names if f"{module}.{name}" in checkpoint.stored))
        return cls(module, low_rank) if f"{module}.weight" in checkpoint.stored else None

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.low_rank.b), self.low_rank.a.shape[1]

    @property
    def names(self) -> list[str]:
        """The stored names of the tensors that change."""
        return [f"{self.module}.{part}" for part in self.parts or ("weight",)]

    def check(self, checkpoint: Checkpoint) -> None:
        """Raise `ValueError`, which says what there is, where the sizes of the weight are others."""
        shapes = {name.removeprefix(f"{self.module}."): checkpoint.stored[name].shape for name in self.names}
        if self.parts and checkpoint.quantization is not None:
            check_parts(shapes, checkpoint.quantization, self.shape)
        elif shapes["weight"] != self.shape:
            raise ValueError(f"weight {list(shapes['weight'])}")

    def add(self, weight: Tensor) -> Tensor:
        """Return the sum, float32 [out, in]."""
        low_rank = self.low_rank
        total = weight.float().addmm_(low_rank.b.float(), low_rank.a.float(), alpha=low_rank.scale)
        if low_rank.magnitude is not None:
            total.mul_((low_rank.magnitude.float() / torch.linalg.vector_norm(total, dim=1))[:, None])
        return total

    def _check_finite(self, weight: Tensor) -> Tensor:
        if not weight.isfinite().all():
            raise CheckpointError(f"the adapter of {self.module!r} makes numbers that {weight.dtype} does not have")
        return weight

    def read(self, checkpoint: Checkpoint) -> dict[str, Tensor]:
        """Return the changed tensors by their stored names."""
        stored = dict(zip(self.parts or ("weight",), _read(checkpoint, self.names).values(), strict=True))
        if checkpoint.quantization is None or not self.parts:
            return {self.names[0]: self._check_finite(self.add(stored["weight"]).to(stored["weight"].dtype))}
        try:
            changed = requantize(
                stored, checkpoint.quantization, self.shape, lambda weight: self._check_finite(self.add(weight))
            )
        except ValueError as error:
            raise CheckpointError(f"{checkpoint.path}: {self.module!r} has {error}") from None
        return {f"{self.module}.{part}": tensor for part, tensor in (stored | changed).items()}


def _merge_file(checkpoint: Checkpoint, file: Path, added: Mapping[str, _Merged]) -> Iterator[tuple[str, Tensor]]:
    names = {name for name, tensor in checkpoint.stored.items() if tensor.file == file}
    for merged in added.values():
        if own := names.intersection(merged.names):  # the others lie in other files
            tensors = merged.read(checkpoint)
            yield from ((name, tensors[name]) for name in own)
            names -= own
    yield from _read(checkpoint, sorted(names)).items()


def _read(checkpoint: Checkpoint, names: Sequence[str]) -> dict[str, Tensor]:
    found = {
        name: slices.read(tuple(map(range, checkpoint.stored[name].shape))).clone()
        for name, slices in checkpoint.slices(names, torch.device("cpu"))
    }
    return {name: found[name] for name in names}

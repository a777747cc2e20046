"""Writes the checkpoint: finished parts, everything else as the source has it, in shards of bounded size."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.tensors import INDEX_FILE, SINGLE_FILE
from seesay.lite.work_folder import copy_files

MAX_SHARD_BYTES = 4 << 30
SUFFIXES = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".ttf")
"""Files of processors, tokenizers, chat templates and generation, and fonts. Code of a checkpoint is not copied."""


def make_config(source: Checkpoint, quantization_config: Mapping[str, object]) -> dict[str, Any]:
    """Return config.json of the quantized model: the source's own, with `quantization_config`."""
    config = source.read_json("config.json") or {}
    return {**config, "quantization_config": dict(quantization_config)}


def write_checkpoint(
    folder: Path,
    source: Checkpoint,
    parts: Sequence[Checkpoint],
    config: Mapping[str, object],
    replaced: Iterable[str],
) -> None:
    """Write the model into an empty folder: all tensors of `parts`, those of `source` but for `replaced`, and the
    source's files that are not weights. No more than one shard is in memory."""
    gone = frozenset(replaced)
    homes = {name: source for name in source.stored if name not in gone}
    homes |= {name: part for part in parts for name in part.stored}
    files = _name_shards(_divide(homes, MAX_SHARD_BYTES))
    for file, names in files.items():
        save_file(_read(homes, names), folder / file, metadata={"format": "pt"})
    if len(files) > 1:
        _write_json(folder / INDEX_FILE, _make_index(homes, files))
    copy_files(source.path, folder, SUFFIXES, leave_out=("config.json", INDEX_FILE))
    for name, content in source.stand_ins.items():
        _write_json(folder / name, content)
    _write_json(folder / "config.json", config)
    for file in files:
        shutil.copymode(folder / "config.json", folder / file)  # safetensors makes files that only their owner can read


def _name_shards(shards: Sequence[list[str]]) -> dict[str, list[str]]:
    """Return the names of the tensors of each file, by its name as Transformers calls it."""
    if len(shards) == 1:
        return {SINGLE_FILE: shards[0]}
    return {f"model-{i:05d}-of-{len(shards):05d}.safetensors": shard for i, shard in enumerate(shards, start=1)}


def _make_index(homes: Mapping[str, Checkpoint], files: Mapping[str, Sequence[str]]) -> dict[str, object]:
    """Return what the index file says: which of the shards has a tensor."""
    weight_map = {name: file for file, names in files.items() for name in names}
    total = sum(checkpoint.find(name).num_bytes for name, checkpoint in homes.items())
    return {"metadata": {"total_size": total}, "weight_map": weight_map}


def _divide(homes: Mapping[str, Checkpoint], max_bytes: int) -> list[list[str]]:
    """Return the names of tensors, by shard; a larger tensor has one of its own."""
    shards: list[list[str]] = [[]]
    size = 0
    for name in sorted(homes):
        num_bytes = homes[name].find(name).num_bytes
        if shards[-1] and size + num_bytes > max_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += num_bytes
    return shards


def _read(homes: Mapping[str, Checkpoint], names: Sequence[str]) -> dict[str, Tensor]:
    """Return tensors by name; those of one checkpoint are read together."""
    by_home: dict[int, tuple[Checkpoint, list[str]]] = {}
    for name in names:
        by_home.setdefault(id(homes[name]), (homes[name], []))[1].append(name)
    found: dict[str, Tensor] = {}
    for checkpoint, wanted in by_home.values():
        for name, slices in checkpoint.slices(wanted, torch.device("cpu")):
            shape = checkpoint.find(name).shape
            found[name] = slices.read(tuple(range(size) for size in shape)).clone()
    return {name: found[name] for name in names}


def _write_json(file: Path, value: Mapping[str, object]) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

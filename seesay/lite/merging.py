"""Merges a LoRA adapter into the checkpoint that it was made for."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.adapter_folder import AdapterFolder
from seesay.checkpoint.model_path import resolve_checkpoint
from seesay.checkpoint.tensors import INDEX_FILE
from seesay.config.checks import require
from seesay.errors import CheckpointError
from seesay.lite.merged_weights import Changes, read_stored
from seesay.lite.output import SUFFIXES
from seesay.lite.work_folder import copy_files, writing

_CONFIG, _SIZE, _TIED = "config.json", "vocab_size", "tie_word_embeddings"


def merge(
    model: str | os.PathLike[str], adapter: str | os.PathLike[str], work_dir: str | os.PathLike[str] = "./work_dir"
) -> Path:
    """Write the checkpoint of `model` with `adapter` added to its weights to `work_dir`, a new or an empty folder, and
    return that. Sums are computed in float32. Any linear layer may have an adapter, those of the vision tower and of
    experts, too, also with magnitudes (DoRA), and so may the table of embeddings and the head; weights that the adapter
    has whole take the place of stored ones. Quantized weights are rounded again, in the format that they have.
    Raises `CheckpointError` for an adapter that does not fit."""
    target = Path(work_dir)
    has_files = target.exists() and (not target.is_dir() or any(target.iterdir()))
    require(not has_files, "work_dir", str(target), "must be a new or an empty folder")
    checkpoint = Checkpoint.load(resolve_checkpoint(model))
    if checkpoint.stand_ins:
        raise CheckpointError(
            f"{checkpoint.path}: adapters are not merged into a model in Mistral's own layout: give the same model in "
            "Transformers' layout, with a config.json"
        )
    changes = Changes(checkpoint, AdapterFolder.load(resolve_checkpoint(adapter), takes_saved=True))
    config = _rewrite_config(checkpoint, changes)
    files = sorted({tensor.file for tensor in checkpoint.stored.values()})
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
        for file in files:
            save_file(dict(_merge_file(checkpoint, file, changes)), target / file.name, metadata={"format": "pt"})
        copy_files(checkpoint.path, target, SUFFIXES, leave_out=(_CONFIG, INDEX_FILE))
        if (checkpoint.path / INDEX_FILE).is_file():
            (target / INDEX_FILE).write_text(_rewrite_index(checkpoint, changes))
        (target / _CONFIG).write_text(config)  # last, as a folder without it is no model
        for name in (INDEX_FILE, _CONFIG):
            if (target / name).is_file():
                shutil.copymode(checkpoint.path / _CONFIG, target / name)
        for file in files:
            shutil.copymode(target / _CONFIG, target / file.name)
    return target


def _merge_file(checkpoint: Checkpoint, file: Path, changes: Changes) -> Iterator[tuple[str, Tensor]]:
    names = {name for name, tensor in checkpoint.stored.items() if tensor.file == file}
    if (head := changes.own_head) is not None and f"{head.source}.weight" in names:
        yield from head.read(checkpoint).items()
    for change in changes.found.values():
        if own := names.intersection(change.names):  # the others lie in other files
            tensors = change.read(checkpoint)
            yield from ((name, tensors[name]) for name in own)
            names -= own
    yield from read_stored(checkpoint, sorted(names)).items()


def _rewrite_index(checkpoint: Checkpoint, changes: Changes) -> str:
    text = (checkpoint.path / INDEX_FILE).read_text()
    if (head := changes.own_head) is None:
        return text
    index = json.loads(text)
    index["weight_map"][head.names[0]] = index["weight_map"][f"{head.source}.weight"]
    return json.dumps(index, indent=2) + "\n"


def _rewrite_config(checkpoint: Checkpoint, changes: Changes) -> str:
    """Return the configuration for the tokens and the head that there are now. Raises `CheckpointError` for one that
    does not tell the number of tokens."""
    text = (checkpoint.path / _CONFIG).read_text()
    config: dict[str, Any] = json.loads(text)
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    is_changed = changes.num_tokens is not None
    if changes.parts_ends and _replace(parts, _TIED, True, False):
        is_changed = True
    if changes.own_head is not None and config.get(_TIED) is not False:
        config[_TIED], is_changed = False, True
    if not is_changed:
        return text
    if changes.num_tokens is not None and not _replace(parts, _SIZE, *changes.num_tokens):
        raise CheckpointError(
            f"{checkpoint.path / _CONFIG}: {_SIZE} is not {changes.num_tokens[0]}, the rows of the stored table"
        )
    return json.dumps(config, indent=2) + "\n"


def _replace(parts: Iterable[dict[str, Any]], name: str, before: int, now: int) -> bool:
    """Replace a field where it has some value. Returns whether it is anywhere."""
    found = [part for part in parts if part.get(name) == before]
    for part in found:
        part[name] = now
    return bool(found)

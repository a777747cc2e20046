"""Folders that have a part of a model's weights alone, and name the models that have the others (Ultravox)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seesay.checkpoint.files import read_object
from seesay.checkpoint.model_path import CONFIG_PATTERNS, resolve_checkpoint, resolve_config
from seesay.checkpoint.tensors import INDEX_FILE, StoredTensor, find_shards, read_header
from seesay.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A field of config.json, `id_key`, that names another model: a folder or an id on the hub. Its config.json is
    what `config_key` has here. Those of its tensors whose names begin with `inner` are this model's, with `prefix` in
    place of that."""

    id_key: str
    config_key: str
    prefix: str
    inner: str = ""


REFERENCES: Mapping[str, tuple[Reference, ...]] = {
    "ultravox": (
        Reference(id_key="text_model_id", config_key="text_config", prefix="language_model."),
        Reference(id_key="audio_model_id", config_key="audio_config", prefix="audio_tower.", inner="model.encoder."),
    )
}
"""By `model_type`."""


def complete_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json with those of the models that it names. Raises `CheckpointError` for one that cannot be
    found."""
    found = dict(config)
    for reference, folder in _find(config, resolve_config):
        nested = read_object(folder / CONFIG_PATTERNS[0])
        if nested is None:
            raise CheckpointError(f"{reference.id_key}: {folder} has no config.json")
        if nested.get("quantization_config") is not None:
            raise CheckpointError(f"{reference.id_key}: {folder} has quantized weights, which are not supported here")
        found[reference.config_key] = nested
    return found


def find_other_tensors(
    config: Mapping[str, Any], own: Mapping[str, StoredTensor], digest: Any
) -> dict[str, StoredTensor]:
    """Return the tensors of the models that config.json names, without those that the folder has itself, and add what
    their files' headers say to `digest`. Raises `CheckpointError` for a model that cannot be found."""
    found: dict[str, StoredTensor] = {}
    for reference, folder in _find(config, resolve_checkpoint):
        for file in find_shards(folder, read_object(folder / INDEX_FILE)):
            for name, tensor in read_header(file, digest).items():
                renamed = reference.prefix + name.removeprefix(reference.inner)
                if name.startswith(reference.inner) and renamed not in own:
                    found[renamed] = replace(tensor, own_name=name)
    return found


def _find(config: Mapping[str, Any], resolve: Callable[[str], Path]) -> list[tuple[Reference, Path]]:
    kind = config.get("model_type")
    found = []
    for reference in REFERENCES.get(kind, ()) if isinstance(kind, str) else ():
        name = config.get(reference.id_key)
        if name is None:
            continue
        if not isinstance(name, str):
            raise CheckpointError(f"{reference.id_key} must name a model, got {str(name)[:40]!r}")
        try:
            found.append((reference, resolve(name)))
        except CheckpointError as error:
            raise CheckpointError(f"{reference.id_key}: {error}") from None
    return found

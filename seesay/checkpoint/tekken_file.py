"""Read Mistral's tekken.json: what both the tokenizer and the choice of a chat template take from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from seesay.checkpoint.files import read_object
from seesay.errors import CheckpointError

FILE = "tekken.json"
_MAX_BYTES = 32 << 20
"""Largest tekken.json. The published ones, of 150,000 tokens, have 15 to 20 MB."""


def read_tekken(file: Path) -> Mapping[str, object]:
    """Return the object in a tekken.json. Raises `CheckpointError` for a missing, damaged or too large file."""
    content = read_object(file, max_bytes=_MAX_BYTES)
    if content is None:
        raise CheckpointError(f"{file}: there is no such file")
    return content


def find_tekken_version(folder: Path) -> str | None:
    """Return the version of the tokenizer, such as v7, which says how conversations are written; None in a folder
    without a tekken.json that has one."""
    config = (read_object(folder / FILE, max_bytes=_MAX_BYTES) or {}).get("config")
    version = config.get("version") if isinstance(config, Mapping) else None
    return version if isinstance(version, str) else None

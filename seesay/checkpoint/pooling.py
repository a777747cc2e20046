"""How a model folder of sentence-transformers says that hidden states become an embedding."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Literal

from seesay.checkpoint.checkpoint import Checkpoint
from seesay.checkpoint.files import read_text
from seesay.errors import CheckpointError

logger = logging.getLogger("seesay")

POOLING_FILE = "1_Pooling/config.json"
MODULES_FILE = "modules.json"
_MODES: Mapping[str, Literal["mean", "last"]] = {
    "mean": "mean",
    "lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}


def read_pooling(checkpoint: Checkpoint) -> Literal["mean", "last"] | None:
    """Return the pooling that the folder names; None where it names none. Logs a warning for one that is not supported,
    which takes nothing from a model that answers. Raises `CheckpointError` for a file that is not valid JSON."""
    config = checkpoint.read_json(POOLING_FILE)
    if config is None:
        return None
    named = _list_modes(config)
    found = _MODES.get(named[0]) if len(named) == 1 else None
    if found is None:
        logger.warning(
            "%s: %s asks for the pooling %s, which is not supported: embeddings have the mean of all positions",
            checkpoint.path,
            POOLING_FILE,
            ", ".join(named)[:80] or "of no name",
        )
    return found


def _list_modes(config: Mapping[str, object]) -> list[str]:
    """Return the names of the modes in a file; older ones have a flag for each."""
    mode = config.get("pooling_mode")
    if mode is not None:
        return [str(mode)]
    return [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]


def scales_embeddings(checkpoint: Checkpoint) -> bool:
    """Return whether the folder's embeddings are scaled to length 1. Raises `CheckpointError` for a file that is not
    valid JSON."""
    file = checkpoint.path / MODULES_FILE
    try:
        modules = json.loads(read_text(file))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not valid JSON: {error}") from None
    entries = modules if isinstance(modules, list) else []
    return any(isinstance(entry, dict) and str(entry.get("type")).endswith(".Normalize") for entry in entries)

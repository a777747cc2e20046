"""How a model folder of sentence-transformers says that hidden states become an embedding."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Literal

from seesay.checkpoint.checkpoint import Checkpoint

logger = logging.getLogger("seesay")

POOLING_FILE = "1_Pooling/config.json"
_MODES: Mapping[str, Literal["mean", "last"]] = {"mean": "mean", "lasttoken": "last"}
_FLAGS: Mapping[str, Literal["mean", "last"]] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
"""Older files have a flag for each mode."""


def read_pooling(checkpoint: Checkpoint) -> Literal["mean", "last"] | None:
    """Return the pooling that the folder names; None where it names none. Logs a warning for one that is not supported,
    which takes nothing from a model that answers. Raises `CheckpointError` for a file that is not valid JSON."""
    config = checkpoint.read_json(POOLING_FILE)
    if config is None:
        return None
    mode = config.get("pooling_mode")
    flags = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    if isinstance(mode, str) and mode in _MODES:
        return _MODES[mode]
    if mode is None and len(flags) == 1 and flags[0] in _FLAGS:
        return _FLAGS[flags[0]]
    logger.warning(
        "%s: %s asks for the pooling %s, which is not supported: embeddings have the mean of all positions",
        checkpoint.path,
        POOLING_FILE,
        str(mode or ", ".join(flags) or None)[:80],
    )
    return None

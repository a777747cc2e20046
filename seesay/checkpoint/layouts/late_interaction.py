"""Models for late interaction, ColPali and ColQwen2: the configuration of the model that they are made of is nested in
`vlm_config`. It is read as that model's, with an architecture and a size of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seesay.checkpoint.fields import read_part
from seesay.errors import CheckpointError

_SIZE = 128
_ARCHITECTURES = {
    "paligemma": "ColPaliForRetrieval",
    "qwen2_vl": "ColQwen2ForRetrieval",
    "qwen2_5_vl": "ColQwen2_5ForRetrieval",
}


def read_late_interaction(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of the nested model with the architecture that a family claims. Raises `CheckpointError`
    for another model."""
    nested = read_part(config, "vlm_config")
    kind = nested.get("model_type")
    if kind not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise CheckpointError(f"vlm_config.model_type must be one of {known}, got {str(kind)[:40]!r}")
    types = {name: config[name] for name in ("dtype", "torch_dtype") if name in config}
    size = config.get("embedding_dim", _SIZE)
    return {**nested, **types, "architectures": [_ARCHITECTURES[kind]], "embedding_dim": size}

"""Nemotron 3 Nano Omni as its authors publish it: read as the model that Transformers made of it, which still knows the
authors' names of most fields. Audio, which is not supported, is left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seesay.checkpoint.fields import check_fields, read_part

_TOWER: Mapping[str, object] = {"model": "vit_huge_patch16_224", "register_multiple": 10}
"""Of the arguments that the tower was trained with, those that its sizes follow from: they are Transformers' defaults
(C-RADIOv4-H)."""


def read_nemotron_omni(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration in Transformers' layout. Raises `CheckpointError` naming what is not supported."""
    vision = read_part(config, "vision_config")
    if vision.get("args") is not None:
        check_fields(read_part(vision, "args"), _TOWER, where="vision_config.args.")
    kept = {name: value for name, value in config.items() if name not in ("auto_map", "sound_config")}
    return {
        **kept,
        "architectures": ["NemotronH_Omni_Reasoning_V3"],
        "model_type": "nemotron_h_omni",
        "llm_config": {**read_part(config, "llm_config"), "model_type": "nemotron_h"},
        "vision_config": {**vision, "model_type": "radio"},
    }

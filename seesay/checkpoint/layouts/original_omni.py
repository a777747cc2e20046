"""Qwen2.5-Omni and Qwen3-Omni as they are published: a model that sees, hears and writes, the thinker, beside models
that speak. Read as the thinker alone, whose tensors begin with `THINKER`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seesay.checkpoint.fields import read_part

THINKERS: Mapping[str, str] = {
    "qwen2_5_omni": "Qwen2_5OmniThinkerForConditionalGeneration",
    "qwen3_omni_moe": "Qwen3OmniMoeThinkerForConditionalGeneration",
}
THINKER = "thinker."


def read_omni(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration of the thinker. Raises `CheckpointError` where there is none."""
    thinker = read_part(config, "thinker_config")
    kind = str(config["model_type"])
    kept = {name: config[name] for name in ("dtype", "torch_dtype", "eos_token_id") if name in config}
    return {**kept, **thinker, "architectures": [THINKERS[kind]], "model_type": f"{kind}_thinker"}

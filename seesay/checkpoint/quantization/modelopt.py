"""FP8 weights as NVIDIA's Model Optimizer writes them."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any

from seesay.checkpoint.quantization.quantization import Quantization
from seesay.checkpoint.quantization.quantization_config import Settings

KV_SCALES = ("k_scale", "v_scale")
"""Tensors of a quantized KV cache, behind the names of modules."""
FILE = "hf_quant_config.json"
"""Holds the settings where config.json does not."""


def settings_of_file(fields: Mapping[str, object]) -> dict[str, Any]:
    """Return the content of `FILE` with the fields that config.json would have."""
    inner = fields.get("quantization")
    inner = inner if isinstance(inner, Mapping) else {}
    return {"quant_method": "modelopt", **inner, "ignore": inner.get("exclude_modules") or []}


def read_modelopt(settings: Settings) -> Quantization:
    """`weight`, `weight_scale`, and `input_scale` with a scale per tensor; or a scale per output [out], and one for
    each token."""
    algorithm = settings.get("quant_algo")
    name = algorithm.upper() if isinstance(algorithm, str) else algorithm
    settings.expect("quant_algo", name, "FP8", "FP8_PER_CHANNEL_PER_TOKEN")
    settings.expect("kv_cache_quant_algo", settings.get("kv_cache_quant_algo"), None, "FP8")
    excluded = settings.names("ignore", settings.get("ignore") or ())
    return Quantization(
        strategy="tensor" if name == "FP8" else "channel",
        scale_has_inputs=False,
        has_input_scale=name == "FP8",
        excluded=tuple(_as_pattern(entry) for entry in excluded),
        marker="weight_scale",
    )


def _as_pattern(entry: str) -> str:
    """Return an entry with wildcards, which are for whole names, as a regular expression."""
    return f"re:{fnmatch.translate(entry)}" if any(sign in entry for sign in "*?[") else entry

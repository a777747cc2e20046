"""MXFP4 experts as OpenAI publishes gpt-oss: the format of the Open Compute Project's microscaling specification."""

from __future__ import annotations

from seesay.checkpoint.quantization.quantization import Quantization
from seesay.checkpoint.quantization.quantization_config import Settings

GROUP_SIZE = 32
"""Inputs that share a scale."""


def read_mxfp4(settings: Settings) -> Quantization:
    """`quant_method` 'mxfp4': `gate_up_proj_blocks`, `gate_up_proj_scales` and the same of `down_proj`, of the experts
    of a layer. Layers without them are plain, whatever `modules_to_not_convert` says."""
    settings.names("modules_to_not_convert", settings.get("modules_to_not_convert") or ())
    return Quantization(
        format="mxfp4",
        strategy="group",
        bits=4,
        group_size=GROUP_SIZE,
        excluded=(),
        marker="gate_up_proj_blocks",
    )

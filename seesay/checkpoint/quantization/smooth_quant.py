"""W8A8 weights as LMDeploy's `lite smooth_quant` writes them."""

from __future__ import annotations

from collections.abc import Mapping

from seesay.checkpoint.quantization.quantization import Format, Quantization
from seesay.checkpoint.quantization.quantization_config import Settings

_FORMATS: Mapping[str, Format] = {"int8": "int8", "float8_e4m3fn": "fp8"}


def read_smooth_quant(settings: Settings) -> Quantization:
    """`quant_method` 'smooth_quant': `weight` and `scale` [out, 1]; layers without a scale are plain."""
    dtype = settings.get("quant_dtype", "int8")
    settings.expect("quant_dtype", dtype, *_FORMATS)
    return Quantization(format=_FORMATS[dtype], strategy="channel", scale_name="scale", excluded=(), marker="scale")

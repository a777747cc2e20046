"""FP8 weights as Transformers and vLLM write them."""

from __future__ import annotations

from seesay.checkpoint.quantization.quantization import Quantization
from seesay.checkpoint.quantization.quantization_config import Settings


def read_fp8(settings: Settings) -> Quantization:
    """`quant_method` 'fp8': scales of blocks (`weight_scale_inv`) or of tensors (`weight_scale`)."""
    settings.expect("fmt", settings.get("fmt", "e4m3"), "e4m3", "float8_e4m3fn")
    scheme = settings.get("activation_scheme", "dynamic")
    settings.expect("activation_scheme", scheme, "dynamic", "static")
    skipped = settings.get("modules_to_not_convert") or settings.get("ignored_layers") or ()
    excluded = (*settings.names("modules_to_not_convert", skipped), "lm_head")
    block = settings.get("weight_block_size")
    if block is None:
        return Quantization(strategy="tensor", has_input_scale=scheme == "static", excluded=excluded)
    settings.expect("activation_scheme", scheme, "dynamic")
    return Quantization(
        strategy="block",
        scale_name="weight_scale_inv",
        block_size=settings.block("weight_block_size", block),
        excluded=excluded,
    )

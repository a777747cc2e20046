"""Integers of a few bits, packed as AWQ and GPTQ pack them."""

from __future__ import annotations

from seesay.checkpoint.quantization.quantization import Quantization
from seesay.checkpoint.quantization.settings import Settings


def read_awq(settings: Settings) -> Quantization:
    """As AutoAWQ writes it: `qweight`, `qzeros`, `scales`."""
    settings.expect("bits", settings.get("bits"), 4)
    settings.expect("version", str(settings.get("version", "gemm")).lower(), "gemm")
    settings.expect("zero_point", settings.get("zero_point", True), True)
    skipped = settings.get("modules_to_not_convert") or ()
    return Quantization(
        format="awq",
        strategy="group",
        bits=4,
        marker="qweight",
        group_size=settings.group_size("group_size", settings.get("group_size", 128)),
        excluded=(*settings.names("modules_to_not_convert", skipped), "lm_head"),
    )


def read_gptq(settings: Settings) -> Quantization:
    """As AutoGPTQ and GPTQModel write it: `qweight`, `qzeros`, `scales`, `g_idx`."""
    bits: int = settings.get("bits")
    settings.expect("bits", bits, 4, 8)
    settings.expect("dynamic", settings.get("dynamic") or None, None)
    kind = settings.get("checkpoint_format") or "gptq"
    settings.expect("checkpoint_format", kind, "gptq", "gptq_v2")
    skipped = settings.get("modules_to_not_convert") or ()
    return Quantization(
        format="gptq",
        strategy="group",
        bits=bits,
        marker="qweight",
        group_size=settings.group_size("group_size", settings.get("group_size", 128)),
        zero_offset=1 if kind == "gptq" else 0,
        excluded=(*settings.names("modules_to_not_convert", skipped), "lm_head"),
    )

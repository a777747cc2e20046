"""Integers of 4 or 8 bits, packed into int32 as AWQ, GPTQ and compressed-tensors pack them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seesay.checkpoint.quantization.quantization import Quantization
from seesay.checkpoint.quantization.quantization_config import Settings

_GROUP_MULTIPLE = 16
"""Tensor cores multiply so many inputs at once; published checkpoints have groups of 32, 64 and 128."""


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
        group_size=_group_size(settings, "group_size", settings.get("group_size", 128)),
        excluded=(*settings.names("modules_to_not_convert", skipped), "lm_head"),
    )


def read_gptq(settings: Settings) -> Quantization:
    """As AutoGPTQ and GPTQModel write it: `qweight`, `qzeros`, `scales`, `g_idx`."""
    bits: int = settings.get("bits")
    settings.expect("bits", bits, 4, 8)
    _check_dynamic(settings)
    for field in ("sym", "desc_act"):
        settings.expect(field, settings.get(field), None, True, False)
    kind = settings.get("checkpoint_format") or "gptq"
    settings.expect("checkpoint_format", kind, "gptq", "gptq_v2")
    skipped = settings.get("modules_to_not_convert") or ()
    return Quantization(
        format="gptq",
        strategy="group",
        bits=bits,
        marker="qweight",
        group_size=_group_size(settings, "group_size", settings.get("group_size", 128)),
        zero_offset=1 if kind == "gptq" else 0,
        is_symmetric=settings.get("sym") is True,
        has_order=settings.get("desc_act") is True,
        excluded=(*settings.names("modules_to_not_convert", skipped), "lm_head"),
    )


def _check_dynamic(settings: Settings) -> None:
    """Refuse settings of single modules, but for those that stay plain ('-:' and a pattern), which the tensors tell."""
    dynamic = settings.get("dynamic") or {}
    if not isinstance(dynamic, Mapping):
        raise settings.refused("dynamic must be an object")
    for pattern in dynamic:
        if not pattern.startswith("-:"):
            raise settings.refused(
                f"dynamic: modules with settings of their own are not supported, got {pattern[:80]!r}"
            )


def read_pack_quantized(settings: Settings, weights: Mapping[str, Any]) -> Quantization:
    """compressed-tensors of format 'pack-quantized', whose `weights` these are: `weight_packed`, `weight_scale`,
    `weight_shape`, and `weight_zero_point` and `weight_g_idx` where the settings say so."""
    bits: int = weights.get("num_bits", 8)
    settings.expect("weights.num_bits", bits, 4, 8)
    settings.expect("weights.type", weights.get("type", "int"), "int")
    settings.expect("weights.dynamic", weights.get("dynamic", False), False)
    is_symmetric, strategy = weights.get("symmetric", True), weights.get("strategy")
    settings.expect("weights.symmetric", is_symmetric, True, False)
    settings.expect("weights.strategy", strategy, "group", "channel")
    order = weights.get("actorder")
    settings.expect("weights.actorder", order, None, False, True, "group", "weight", "static", "dynamic")
    group_size = None
    if strategy == "group":
        group_size = _group_size(settings, "weights.group_size", weights.get("group_size"))
    return Quantization(
        format="pack-quantized",
        strategy="group",
        marker="weight_packed",
        bits=bits,
        group_size=group_size,
        is_symmetric=is_symmetric,
        has_order=group_size is not None and order in (True, "group", "dynamic"),
        excluded=settings.names("ignore", settings.get("ignore") or ()),
    )


def _group_size(settings: Settings, field: str, value: object) -> int | None:
    """Return the number of inputs that share a scale; None for all."""
    size = settings.group_size(field, value)
    if size is not None and size % _GROUP_MULTIPLE:
        raise settings.refused(f"{field} must be -1 or a multiple of {_GROUP_MULTIPLE}, got {size}")
    return size

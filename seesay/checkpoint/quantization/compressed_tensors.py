"""The formats of llm-compressor: `quant_method` 'compressed-tensors', whose `format` says how weights are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from seesay.checkpoint.quantization.quantization import Quantization, Strategy
from seesay.checkpoint.quantization.settings import Settings


def read_compressed_tensors(settings: Settings) -> Quantization:
    settings.expect("format", settings.get("format"), "float-quantized")
    groups = settings.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise settings.refused("config_groups: there must be one group of layers")
    [group] = groups.values()
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        raise settings.refused("config_groups: its group has no weights")
    settings.expect("targets", group.get("targets"), ["Linear"])
    for name, value in (("num_bits", 8), ("type", "float"), ("symmetric", True)):
        settings.expect(f"weights.{name}", weights.get(name, value), value)
    strategy = weights.get("strategy")
    settings.expect("weights.strategy", strategy, "tensor", "channel", "block")
    inputs = group.get("input_activations")
    is_static = isinstance(inputs, Mapping) and inputs.get("dynamic") is False
    return Quantization(
        strategy=cast(Strategy, strategy),
        block_size=settings.block("weights.block_structure", weights.get("block_structure") or [128, 128]),
        has_input_scale=is_static,
        excluded=settings.names("ignore", settings.get("ignore") or ()),
    )

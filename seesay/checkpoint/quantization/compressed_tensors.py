"""The formats of llm-compressor: `quant_method` 'compressed-tensors', whose `format` says how weights are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from seesay.checkpoint.quantization.packed import read_pack_quantized
from seesay.checkpoint.quantization.quantization import Format, Quantization, Strategy
from seesay.checkpoint.quantization.quantization_config import Settings

_TYPES: Mapping[str, tuple[str, ...]] = {
    "float-quantized": ("float",),
    "int-quantized": ("int",),
    "naive-quantized": ("float", "int"),
}
"""Types of numbers by the format that stores each in a byte of its own."""
_FORMATS: Mapping[str, Format] = {"float": "fp8", "int": "int8"}
_STRATEGIES = {"float": ("tensor", "channel", "block"), "int": ("tensor", "channel")}
_INPUT_STRATEGIES = {"float": ("tensor", "token", "group"), "int": ("tensor", "token")}


def read_compressed_tensors(settings: Settings) -> Quantization:
    """`weight` and `weight_scale`, and `input_scale` where the scale of activations is static."""
    format_name = settings.get("format")
    settings.expect("format", format_name, *_TYPES, "pack-quantized")
    _expect_plain_matrices(settings)
    group = _read_group(settings)
    weights = group.get("weights")
    if not isinstance(weights, Mapping):
        raise settings.refused("config_groups: its group has no weights")
    if format_name == "pack-quantized":
        settings.expect("input_activations", group.get("input_activations"), None)
        return read_pack_quantized(settings, weights)
    kind, strategy = weights.get("type", "int"), weights.get("strategy")
    settings.expect("weights.type", kind, *_TYPES[format_name])
    _expect_8_bits(settings, "weights", weights)
    settings.expect("weights.strategy", strategy, *_STRATEGIES[kind])
    inputs = group.get("input_activations")
    is_static = False
    if isinstance(inputs, Mapping):
        settings.expect("input_activations.type", inputs.get("type", kind), kind)
        _expect_8_bits(settings, "input_activations", inputs)
        input_strategy = inputs.get("strategy", "tensor")
        settings.expect("input_activations.strategy", input_strategy, *_INPUT_STRATEGIES[kind])
        is_static = inputs.get("dynamic", input_strategy != "tensor") is False
    elif inputs is not None or kind == "int":
        settings.expect("input_activations", inputs, "an object, as activations become integers, too")
    return Quantization(
        format=_FORMATS[kind],
        strategy=cast(Strategy, strategy),
        block_size=settings.block("weights.block_structure", weights.get("block_structure") or [128, 128]),
        has_input_scale=is_static,
        excluded=settings.names("ignore", settings.get("ignore") or ()),
    )


def _expect_plain_matrices(settings: Settings) -> None:
    """Refuse weights that were rotated, whose inputs must be rotated, too, and sparse ones, which lack the zeros."""
    transforms, sparsity = settings.get("transform_config"), settings.get("sparsity_config")
    groups = transforms.get("config_groups") if isinstance(transforms, Mapping) else transforms
    settings.expect("transform_config", groups or None, None)
    form = sparsity.get("format") if isinstance(sparsity, Mapping) else sparsity
    settings.expect("sparsity_config.format", form or None, None, "dense")


def _read_group(settings: Settings) -> Mapping[str, object]:
    groups = settings.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise settings.refused("config_groups: there must be one group of layers")
    [group] = groups.values()
    if not isinstance(group, Mapping):
        raise settings.refused("config_groups: its group has no weights")
    settings.expect("targets", group.get("targets"), ["Linear"])
    return group


def _expect_8_bits(settings: Settings, field: str, numbers: Mapping[str, object]) -> None:
    for name, value in (("num_bits", 8), ("symmetric", True)):
        settings.expect(f"{field}.{name}", numbers.get(name, value), value)

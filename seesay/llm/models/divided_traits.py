"""The properties by which the engine plans steps, of a rank's share or a stage of a decoder."""

from __future__ import annotations

from dataclasses import replace

from seesay.llm.models.division import Division
from seesay.llm.models.spec import DecoderConfig
from seesay.llm.plans.traits import DecoderTraits


def divide_traits(config: DecoderConfig, division: Division, layers: range, *, has_graphs: bool) -> DecoderTraits:
    """Return the properties of a rank's share."""
    is_stage = len(layers) < config.num_layers
    traits = replace(
        config.traits,
        has_graphs=config.traits.has_graphs and has_graphs and not is_stage,
        kv_shapes=config.traits.kv_shapes[layers.start : layers.stop],
        state_shapes=config.traits.state_shapes[layers.start : layers.stop],
        flops_per_token=config.traits.flops_per_token * len(layers) // config.num_layers,
    )
    size = division.place.size
    if size == 1:
        return traits
    num_kv_heads = len(division.kv_heads(config))
    return replace(
        traits,
        kv_shapes=tuple(
            shape if shape.turned_dim else replace(shape, num_kv_heads=num_kv_heads) for shape in traits.kv_shapes
        ),
        state_shapes=tuple(() if layer.other is None else layer.other.divide(size).state for layer in config.layers)
        if traits.has_states
        else (),
        flops_per_token=traits.flops_per_token // size,
    )

"""The deterministic mode: the models that it refuses, its trial at the start, the options that it changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from seesay.device.determinism import deterministic
from seesay.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from seesay.config import EngineConfig, VisionConfig
    from seesay.device.linear.linear import Linear
    from seesay.llm.models.decoder import Decoder
    from seesay.llm.models.spec import DecoderConfig

_ROWS = 300
_PARTS = ((0, 1), (7, 15), (100, 101), (30, 70), (95, 295))
"""First row and one past the last one of the products that are compared with that of all rows."""


def encode_alone(vision_config: VisionConfig, config: EngineConfig) -> VisionConfig:
    """Return the options with which the tower computes one picture at a time, if `config` asks for that."""
    return replace(vision_config, max_batch_size=1) if config.deterministic else vision_config


def fix_decoder(config: EngineConfig, dtype: torch.dtype) -> AbstractContextManager[None]:
    """Inside, decoders are made for the deterministic mode, if `config` asks for that."""
    return deterministic(dtype if config.deterministic else None)


def refuse_not_deterministic(decoder: Decoder, config: EngineConfig, device: torch.device) -> None:
    """Raise `ConfigError` that names what the deterministic mode does not hold for."""
    if not config.deterministic:
        return
    from seesay.llm.models.composed_decoder import ComposedDecoder

    if not isinstance(decoder, ComposedDecoder):
        raise ConfigError("deterministic: this model's modules are not ours, and their sums may depend on the batch")
    if found := list(name_layers(decoder.config, device)):
        raise ConfigError(f"deterministic: not with {' and '.join(found)}, whose sums may depend on the batch")


def check_products(decoder: Decoder, config: EngineConfig) -> None:
    """Try whether rows get the same bits in products of few rows and of many, for each kind of linear layer. Raises
    `ConfigError` if one does not: the kernels are then not what we take them for on this device."""
    if not config.deterministic:
        return
    import torch

    from seesay.device.linear.expert_linear import ExpertLinear

    kinds = {(linear.method.name, linear.in_features, linear.out_features): linear for linear in _list_linears(decoder)}
    for (name, num_inputs, num_outputs), linear in kinds.items():
        if isinstance(linear, ExpertLinear):
            continue  # its products were tried one by one
        x = torch.randn(_ROWS, num_inputs, generator=torch.Generator().manual_seed(0)).to(decoder.device, decoder.dtype)
        with torch.inference_mode():
            whole = linear(x)
            parts = [linear(x[start:stop]) for start, stop in _PARTS]
            if x.is_meta:
                continue
            is_same = all(torch.equal(part, whole[a:b]) for part, (a, b) in zip(parts, _PARTS, strict=True))
        if not is_same:
            raise ConfigError(
                f"deterministic: on {decoder.device}, {name} products of {num_inputs} inputs and {num_outputs} outputs "
                "depend on the number of rows: leave it out, and report this device"
            )


def _list_linears(decoder: Decoder) -> Iterable[Linear]:
    from seesay.llm.models.composed_decoder import ComposedDecoder

    assert isinstance(decoder, ComposedDecoder)
    return decoder.linears.values()


def name_layers(config: DecoderConfig, device: torch.device) -> Iterator[str]:
    """Yield what a decoder has whose results may depend on other rows."""
    mixers = {type(layer.other).__name__ for layer in config.layers if layer.other is not None}
    names = {"LatentSpec": "latent attention", "ConvolutionSpec": "convolutions"}
    yield from sorted(names.get(name, "layers with states") for name in mixers)
    if any(layer.attends_media for layer in config.layers):
        yield "layers that attend to pictures"
    if config.media_rows is not None:
        yield "weights of their own for rows of pictures"
    yield from _name_experts(config, device)
    if device.type == "cpu" and (config.log_length is not None or config.query_growth is not None):
        yield "queries that grow with their place, on the CPU"


def _name_experts(config: DecoderConfig, device: torch.device) -> Iterator[str]:
    experts = [layer.feed_forward.experts for layer in config.layers if layer.feed_forward.experts is not None]
    if experts and device.type != "cpu":
        yield "experts on a GPU"
    elif any(spec.scales_inputs or spec.has_shared_gate for spec in experts):
        yield "experts with scaled inputs or a gated shared expert"

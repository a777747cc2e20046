"""What the deterministic mode refuses by name, what it tries at the start, and which options it changes.

tests/engine/test_deterministic.py has whole engines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seesay.checkpoint.parts import Source
from seesay.config import EngineConfig, VisionConfig
from seesay.device.determinism import deterministic_dtype
from seesay.device.linear.expert_linear import ExpertLinear
from seesay.engine.core.loading.deterministic import (
    check_products,
    encode_alone,
    fix_decoder,
    name_layers,
    refuse_not_deterministic,
)
from seesay.errors import ConfigError
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.models.mixer_spec import ConvolutionSpec, LatentSpec, StateSpaceSpec
from seesay.llm.models.spec import (
    DecoderConfig,
    ExpertsSpec,
    FeedForwardSpec,
    LayerSpec,
    MediaRowsSpec,
    NormSpec,
    QueryGrowth,
)
from seesay.llm.plans.routing import Routing

CPU, META = torch.device("cpu"), torch.device("meta")
FIXED, USUAL = EngineConfig(deterministic=True, device_type="cpu"), EngineConfig()
PLAIN = LayerSpec(feed_forward=FeedForwardSpec(size=8))
LATENT = LatentSpec(
    rank=8, query_rank=0, turned_dim=4, plain_dim=4, value_dim=4, turns_neighbours=False, num_heads=2
)  # fmt: skip
CONVOLUTION = ConvolutionSpec(size=8, num_taps=3, has_bias=False)
STATES = StateSpaceSpec(
    num_heads=2, head_dim=4, num_groups=1, state_size=4, num_taps=3, has_conv_bias=False, has_bias=False,
    has_output_bias=False,
)  # fmt: skip


def make_config(*layers: LayerSpec, **options: Any) -> DecoderConfig:
    return DecoderConfig(
        vocab_size=32, hidden_size=8, num_heads=2, num_kv_heads=2, head_dim=4, norm=NormSpec(eps=1e-6),
        attention_scale=1.0, rotaries=(), layers=(PLAIN, *layers), **options,
    )  # fmt: skip


def with_experts(**options: Any) -> LayerSpec:
    experts = ExpertsSpec(routing=Routing(num_experts=4, num_chosen=1), **options)
    return replace(PLAIN, feed_forward=replace(PLAIN.feed_forward, experts=experts))


@pytest.mark.parametrize(
    ("config", "on_cpu", "on_gpu"),
    [
        (make_config(), [], []),
        (make_config(replace(PLAIN, mixer=LATENT)), ["latent attention"], ["latent attention"]),
        (make_config(replace(PLAIN, beside=STATES)), ["layers with states"], ["layers with states"]),
        (
            make_config(*(replace(PLAIN, mixer=mixer) for mixer in (STATES, CONVOLUTION, LATENT, CONVOLUTION))),
            ["convolutions", "latent attention", "layers with states"],
            ["convolutions", "latent attention", "layers with states"],
        ),
        (
            make_config(replace(PLAIN, attends_media=True)),
            ["layers that attend to pictures"],
            ["layers that attend to pictures"],
        ),
        (
            make_config(media_rows=MediaRowsSpec()),
            ["weights of their own for rows of pictures"],
            ["weights of their own for rows of pictures"],
        ),
        (make_config(with_experts()), [], ["experts on a GPU"]),
        (
            make_config(with_experts(), with_experts(has_shared_gate=True, shared_size=8)),
            ["experts with scaled inputs or a gated shared expert"],
            ["experts on a GPU"],
        ),
        (
            make_config(with_experts(scales_inputs=True)),
            ["experts with scaled inputs or a gated shared expert"],
            ["experts on a GPU"],
        ),
        (make_config(log_length=512), ["queries that grow with their place, on the CPU"], []),
        (
            make_config(query_growth=QueryGrowth(beta=0.1, length=512)),
            ["queries that grow with their place, on the CPU"],
            [],
        ),
    ],
)
def test_layers_whose_sums_may_depend_on_other_rows_are_named(
    config: DecoderConfig, on_cpu: list[str], on_gpu: list[str]
) -> None:
    assert [*name_layers(config, CPU)] == on_cpu and [*name_layers(config, META)] == on_gpu


class Decoder(ComposedDecoder):
    """Has linear layers of these names, of 3 inputs and 4 outputs, that are computed by functions."""

    def __init__(self, config: Any = None, device: torch.device = CPU, **linears: Callable[[Any], Any]) -> None:
        self.config, self.device, self.dtype = config, device, torch.float32
        self._functions = linears

    @property
    def linears(self) -> dict[str, Any]:
        return {name: make_linear(name, function) for name, function in self._functions.items()}


class Called:
    """A linear layer of which nothing but its product is known."""

    in_features, out_features = 3, 4

    def __init__(self, name: str, function: Callable[[Any], Any]) -> None:
        self.method, self._function = SimpleNamespace(name=name), function

    def __call__(self, x: Any) -> Any:
        return self._function(x)


def make_linear(name: str, function: Callable[[Any], Any]) -> Any:
    return Called(name, function)


def test_layers_are_refused_by_name_only_in_the_mode() -> None:
    decoder: Any = Decoder(make_config(replace(PLAIN, mixer=LATENT), replace(PLAIN, attends_media=True)))
    refuse_not_deterministic(decoder, USUAL, CPU)
    refuse_not_deterministic(Decoder(make_config()), FIXED, CPU)
    said = "^deterministic: not with latent attention and layers that attend to pictures, whose sums may depend"
    with pytest.raises(ConfigError, match=said):
        refuse_not_deterministic(decoder, FIXED, CPU)


def test_modules_of_others_are_refused() -> None:
    modules: Any = SimpleNamespace(config=make_config())
    refuse_not_deterministic(modules, USUAL, CPU)
    with pytest.raises(ConfigError, match="this model's modules are not ours"):
        refuse_not_deterministic(modules, FIXED, CPU)


def multiply(x: Any) -> Any:
    """Each row by itself."""
    return torch.cat([x, x[:, :1] * 2], 1)


def other_with(num_rows: int) -> Callable[[Any], Any]:
    """A product that is another one for so many rows."""
    return lambda x: multiply(x) + (len(x) == num_rows)


@pytest.mark.parametrize("num_rows", [1, 8, 40, 200])
def test_a_product_that_depends_on_the_number_of_rows_is_found(num_rows: int) -> None:
    """For one row, for few and for many; in any kind of linear layer."""
    check_products(Decoder(plain=multiply, int8=multiply), FIXED)
    for decoder in (Decoder(int8=other_with(num_rows)), Decoder(plain=multiply, int8=other_with(num_rows))):
        check_products(decoder, USUAL)
        said = r"deterministic: on cpu, int8 products of 3 inputs and 4 outputs depend on the number of rows"
        with pytest.raises(ConfigError, match=said):
            check_products(decoder, FIXED)


def test_on_the_meta_device_products_are_called_and_not_compared() -> None:
    called: list[int] = []

    def note(x: Any) -> Any:
        called.append(len(x))
        return other_with(1)(x)

    check_products(Decoder(device=META, plain=note, int8=note), FIXED)
    assert len(called) == 12 and max(called) == 300


class Experts(ExpertLinear):
    def forward(self, x: Any) -> Any:
        raise AssertionError("rows of experts need to say which")


class WithExperts(Decoder):
    @property
    def linears(self) -> dict[str, Any]:
        experts = Experts(3, 2, sources=[Source(module="down_proj", num_outputs=4)], bias=False)
        return {"experts": experts, **super().linears}


def test_products_of_experts_are_tried_elsewhere() -> None:
    check_products(WithExperts(), FIXED)
    with pytest.raises(ConfigError, match="int8 products"):
        check_products(WithExperts(int8=other_with(1)), FIXED)


def test_pictures_are_encoded_one_by_one_and_decoders_made_for_the_mode() -> None:
    many = VisionConfig(max_batch_size=7)
    assert encode_alone(many, USUAL) is many and encode_alone(many, FIXED) == replace(many, max_batch_size=1)
    with fix_decoder(FIXED, torch.bfloat16):
        assert deterministic_dtype() is torch.bfloat16
    with fix_decoder(USUAL, torch.bfloat16):
        assert deterministic_dtype() is None

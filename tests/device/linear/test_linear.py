"""The linear layer: what it owns, what may be put around it, and which path computes it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from seesay.checkpoint.parts import Source, TensorLayout, Weight
from seesay.device.linear.adapted import Adaptation
from seesay.device.linear.linear import UNQUANTIZED, Linear
from seesay.device.linear.linear_method import Product, Sizes


def make(*args: int, seed: int = 0, **options: Any) -> Linear:
    layer = Linear(*args, **options)
    generator = torch.Generator().manual_seed(seed)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return layer


@pytest.mark.parametrize("bias", [True, False])
def test_computes_its_formula_before_and_after_it_is_finished(bias: bool) -> None:
    layer, x = make(6, 4, bias=bias), torch.randn(3, 6)
    expected, product = F.linear(x, layer.weight, layer.bias), x @ layer.weight.t()
    for is_finished in (False, True):
        if is_finished:
            layer.finish()
        with torch.inference_mode():
            torch.testing.assert_close(layer(x), expected)
            target = torch.ones(3, 4)
            layer.add(target, x)
            torch.testing.assert_close(target, 1 + product)
    assert not layer.weight.numel()


def test_padding_is_behind_each_source_and_the_inputs() -> None:
    sources = [Source(module="gate", num_outputs=3), Source(module="up", num_outputs=3)]
    layer = make(5, sources=sources, input_multiple=4, output_multiple=4)
    assert layer.bias is not None
    weight, bias, x = layer.weight.clone(), layer.bias.clone(), torch.randn(2, 5)
    layer.finish()
    with torch.inference_mode():
        y = layer(F.pad(x, (0, 3)))
    expected = F.linear(x, weight, bias)
    torch.testing.assert_close(y[:, :3], expected[:, :3])
    torch.testing.assert_close(y[:, 4:7], expected[:, 3:])
    assert not y[:, [3, 7]].any()


class Ready:
    """Has `product` already, whatever the weight is, of which it keeps a weak reference."""

    name = "ready"
    makes_matrix = False

    def __init__(self, **options: Any) -> None:
        self.product = Product(tensors=(), run=lambda x: x, add=lambda target, x: None, **options)
        self.weight: Callable[[], torch.Tensor | None] = lambda: None

    def layouts(self, num_inputs: int) -> Mapping[str, TensorLayout]:
        return UNQUANTIZED.layouts(num_inputs)

    def prepare(self, weights: Mapping[str, Weight], bias: torch.Tensor | None, sizes: Sizes) -> Product:
        self.weight = weakref.ref(weights["weight"].data)
        assert self.weight() is not None
        return self.product


def test_the_plain_weight_is_given_up_when_a_packed_one_is_there() -> None:
    layer, method = make(6, 4), Ready()
    layer.method = method
    layer.finish()
    assert method.weight() is None


def test_modules_are_named_beside_the_layer() -> None:
    joined = Linear(4, sources=[Source(module=f"{name}_proj", num_outputs=4) for name in "qk"])
    assert joined.modules_in("layers.3.self_attn.qkv_proj") == (
        "layers.3.self_attn.q_proj",
        "layers.3.self_attn.k_proj",
    )
    assert Linear(4, 4).modules_in("lm_head") == ("lm_head",)
    group = joined.make_group("attn.qkv")
    assert [[part.tensor for part in weight.parts] for weight in group.weights] == [
        ["attn.q_proj.weight", "attn.k_proj.weight"],
        ["attn.q_proj.bias", "attn.k_proj.bias"],
    ]


def test_what_is_put_around_it_is_called_in_order() -> None:
    layer, x = make(6, 4), torch.randn(3, 6)
    plain, product = F.linear(x, layer.weight, layer.bias), x @ layer.weight.t()
    layer.finish()
    seen: list[Any] = []

    def adapt(x: torch.Tensor, y: torch.Tensor) -> None:
        y.add_(x[:, :4])

    layer.extend(observe=seen.append, adaptation=Adaptation(add=adapt))
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), plain + x[:, :4])
        target = torch.ones(3, 4)
        layer.add(target, x)
        torch.testing.assert_close(target, 1 + product + x[:, :4])
        assert len(seen) == 2 and all(each is x for each in seen)
        layer.extend()
        torch.testing.assert_close(layer(x), plain)
    assert len(seen) == 2


def test_an_extended_layer_has_no_fused_kernel() -> None:
    layer, method = make(4, 4), Ready(fused=lambda x, **_: x, max_fused_rows=8)
    layer.method, product = method, method.product
    assert layer.fused is None and layer.max_fused_rows == 0
    layer.finish()
    assert layer.fused is product.fused and layer.max_fused_rows == 8
    assert layer._run is product.run, "nothing between a call and the product"
    layer.extend(observe=lambda x: None)
    assert layer.fused is None and layer.max_fused_rows == 0
    layer.extend()
    assert layer.fused is product.fused and layer._run is product.run
    layer.extend(adaptation=Adaptation(add=lambda x, y: None))
    adapted: Any = layer.fused
    assert adapted is not product.fused and layer.max_fused_rows == 8 and layer.quantized is None

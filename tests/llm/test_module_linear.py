"""Linear layers of Transformers' modules with packed weights compute what they computed before."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seesay.llm.models.modules.module_linear import PackedLinear, pack_layers, packed_layers

X = torch.randn(9, 24, generator=torch.Generator().manual_seed(1))


class Model(nn.Module):
    """A layer that is also kept outside of the modules, one whose weight is looked at, and one of a derived class."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(24, 40), nn.Linear(40, 24, bias=False)
        self.looked_at, self.other = nn.Linear(24, 24), nn.modules.linear.NonDynamicallyQuantizableLinear(24, 8)
        self.kept = [self.first]
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.kept[0](x).relu())
        found: torch.Tensor = self.other(nn.functional.linear(x, self.looked_at.weight, self.looked_at.bias))
        return found


@pytest.fixture
def packed() -> Model:
    model = Model()
    pack_layers(model)
    if not list(packed_layers(model)):
        pytest.skip("this build of torch packs no weights")
    return model


def names(model: nn.Module) -> set[str]:
    return {name for name, _ in packed_layers(model)}


def test_numbers_are_those_of_plain_layers(packed: Model) -> None:
    expected = Model()(X)
    assert names(packed) == {"first", "second", "looked_at"}
    torch.testing.assert_close(packed(X), expected)
    assert names(packed) == {"first", "second"}, "a layer whose weight is looked at is plain from then on"
    torch.testing.assert_close(packed(X), expected)
    assert packed(X[:0]).shape == (0, 8)


def test_a_packed_weight_is_not_stored_twice(packed: Model) -> None:
    assert {name for name, _ in packed.named_parameters()} == {
        "first.bias", "looked_at.bias", "other.weight", "other.bias",
    }  # fmt: skip


def test_a_weight_that_is_asked_for_is_the_stored_one(packed: Model) -> None:
    layer = packed.first
    assert isinstance(layer, PackedLinear) and layer.in_features == 24
    assert torch.equal(layer.weight, Model().first.weight)
    assert type(layer) is nn.Linear and isinstance(layer.weight, nn.Parameter)
    with pytest.raises(AttributeError, match="wieght"):
        _ = packed.second.wieght


def test_another_weight_and_none(packed: Model) -> None:
    layer, weight = packed.first, torch.randn(40, 24)
    assert isinstance(layer, PackedLinear) and layer.bias is not None
    layer.drop()
    assert layer.packed == () and names(packed) >= {"first"}
    with pytest.raises(AttributeError):
        _ = layer.weight
    layer.bias.data = torch.randn(40)
    layer.take(weight)
    torch.testing.assert_close(layer(X), X @ weight.t() + layer.bias)

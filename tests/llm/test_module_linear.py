"""Linear layers of Transformers' modules, alone and joined, compute what they computed before."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seesay.llm.models.modules.module_linear import (
    ModuleLinear,
    join_layers,
    joined_layers,
    noting_inputs,
    part_layers,
)

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
    join_layers(model)
    if not list(joined_layers(model)):
        pytest.skip("this build of torch packs no weights")
    return model


def names(model: nn.Module) -> set[str]:
    return {name for _, layers in joined_layers(model) for name in layers}


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
    assert isinstance(layer, ModuleLinear) and layer.in_features == 24
    assert torch.equal(layer.weight, Model().first.weight)
    assert type(layer) is nn.Linear and isinstance(layer.weight, nn.Parameter)
    with pytest.raises(AttributeError, match="wieght"):
        _ = packed.second.wieght


def test_another_weight_and_none(packed: Model) -> None:
    layer, weight = packed.first, torch.randn(40, 24)
    assert isinstance(layer, ModuleLinear) and layer.bias is not None
    layer.joined.drop()
    assert layer.joined.tensors == () and names(packed) >= {"first"}
    with pytest.raises(AttributeError):
        _ = layer.weight
    layer.bias.data = torch.randn(40)
    layer.joined.take({0: weight})
    torch.testing.assert_close(layer(X), X @ weight.t() + layer.bias)


class Attention(nn.Module):
    """Three layers of one input, in another order than they are called, one of another input, and one without bias."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.value, self.query, self.key = nn.Linear(24, 8), nn.Linear(24, 16), nn.Linear(24, 8)
        self.gate, self.out = nn.Linear(24, 16, bias=False), nn.Linear(16, 24)
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.query(x), self.key(x), self.value(x)
        found: torch.Tensor = self.out(query * torch.cat((key, value), dim=-1) * self.gate(x))
        return found


def find_groups(model: nn.Module, x: torch.Tensor = X) -> list[tuple[str, ...]]:
    with noting_inputs(model) as groups:
        model(x)
    return groups


@pytest.fixture
def joined() -> Attention:
    model = Attention()
    join_layers(model, find_groups(model))
    if not list(joined_layers(model)):
        pytest.skip("this build of torch packs no weights")
    return model


def test_layers_of_one_input_are_found() -> None:
    assert find_groups(Attention()) == [("query", "key", "value")]
    assert find_groups(Model()) == []


def test_layers_that_are_called_twice_or_share_a_weight_are_not_joined() -> None:
    class Twice(Attention):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + super().forward(x + 1)

    assert find_groups(Twice()) == []
    tied = Attention()
    tied.key.weight = tied.value.weight
    assert find_groups(tied) == []


def test_joined_layers_compute_what_each_computed(joined: Attention) -> None:
    assert [list(layers) for _, layers in joined_layers(joined)] == [["value", "query", "key"], ["gate"], ["out"]]
    torch.testing.assert_close(joined(X), Attention()(X))
    torch.testing.assert_close(joined(X[:1]), Attention()(X[:1]))


def test_a_part_is_of_the_very_tensor_that_is_given(joined: Attention) -> None:
    plain, other = Attention(), X + 1
    torch.testing.assert_close(joined.query(X), plain.query(X))
    torch.testing.assert_close(joined.key(other), plain.key(other))
    torch.testing.assert_close(joined.value(X), plain.value(X))
    for layer in (joined.query, joined.query, joined.key):  # the same one twice
        torch.testing.assert_close(layer(X), getattr(plain, "query" if layer is joined.query else "key")(X))


def test_nothing_is_kept_when_all_parts_are_taken(joined: Attention) -> None:
    joined(X)
    assert all(product._input is None and not product._parts for product, _ in joined_layers(joined))


def test_joined_layers_take_other_weights(joined: Attention) -> None:
    torch.manual_seed(1)
    other = Attention()
    for layer in (other.value, other.query, other.key, other.gate, other.out):
        layer.weight.data = torch.randn(layer.weight.shape) / 5
    _ = joined.key.weight  # looked at: plain from now on
    joined.key.weight.data.copy_(other.key.weight)
    for product, layers in joined_layers(joined):
        product.take({layer.index: other.get_submodule(name).weight for name, layer in layers.items()})  # type: ignore[misc]
    torch.testing.assert_close(joined(X), other(X))


def test_parted_layers_are_what_they_were(joined: Attention) -> None:
    part_layers(joined)
    assert all(type(layer) is nn.Linear for layer in joined.children()) and not list(joined_layers(joined))
    assert {name for name, _ in joined.named_parameters()} == {name for name, _ in Attention().named_parameters()}
    assert all(
        torch.equal(one, two)
        for one, two in zip(
            joined.state_dict().values(), [Attention().state_dict()[name] for name in joined.state_dict()]
        )
    )

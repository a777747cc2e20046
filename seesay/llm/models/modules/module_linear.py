"""Linear layers of Transformers' modules, computed by the device's fastest products, those of one input together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from seesay.device.linear.linear_method import Product
from seesay.device.linear.matmul import make_product, try_packed

_JOINED, _INDEX = "_seesay_joined", "_seesay_index"


class JoinedProduct:
    """x Wᵀ + b of layers that take the same input: the first one that is asked computes all, and the others find their
    part when they are asked with the same tensor. Used by one thread.

    tensors: what it computes with; nothing once it is dropped.
    """

    def __init__(self, layers: Sequence[torch.nn.Linear], product: Product) -> None:
        """Compute `layers` with the product of all their weights and biases, one after another."""
        self._layers = tuple(layers)
        self._sizes = [layer.out_features for layer in layers]
        self._product: Product | None = product
        self._input: torch.Tensor | None = None
        self._parts: list[torch.Tensor | None] = []

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return () if self._product is None else self._product.tensors

    def compute(self, x: torch.Tensor, index: int) -> torch.Tensor:
        """Return what layer `index` makes of x [..., in]."""
        if len(self._sizes) == 1:
            return self._run(x)
        part = self._parts[index] if x is self._input else None
        if part is None:
            parts = torch.split(self._run(x), self._sizes, dim=-1)
            part, self._input, self._parts = parts[index], x, list(parts)
        self._parts[index] = None
        if not any(each is not None for each in self._parts):
            self._input, self._parts = None, []
        return part

    def _run(self, x: torch.Tensor) -> torch.Tensor:
        product = self._product
        assert product is not None, "its weights were dropped"
        rows = x.numel() // x.shape[-1]
        if product.fused is not None and 0 < rows <= product.max_fused_rows:
            return product.fused(x.reshape(rows, -1)).view(*x.shape[:-1], -1)
        return product.run(x)

    def find_weight(self, index: int) -> torch.Tensor:
        """Return the weight [out, in] of layer `index`."""
        [weight, *_] = self.tensors
        dense = weight if weight.layout is torch.strided else weight.to_dense()
        return torch.split(dense, self._sizes)[index]

    def drop(self) -> None:
        """Free the weights. The layers compute nothing until they have others."""
        self._product = None

    def take(self, weights: Mapping[int, torch.Tensor]) -> None:
        """Compute with other weights [out, in] of the layers, by their indices, and with their biases as they are now;
        where possible, at the same addresses. Layers that are plain have their own."""
        plain = {index: layer.weight for index, layer in enumerate(self._layers) if index not in weights}
        found = {**weights, **plain}
        new = _multiply([found[index] for index in range(len(found))], self._layers)
        assert new is not None
        if self._product is None or not self._product.try_copy(new):
            self._product = new


class ModuleLinear(torch.nn.Linear):
    """A module's own layer, whose weight is part of a product, and no parameter. Code that asks for `weight` gets it,
    and from then on the layer is what it was before."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.joined.compute(input, self.index)

    @property
    def joined(self) -> JoinedProduct:
        joined: JoinedProduct = self.__dict__[_JOINED]
        return joined

    @property
    def index(self) -> int:
        """Its place among the layers of the product."""
        index: int = self.__dict__[_INDEX]
        return index

    def __getattr__(self, name: str) -> Any:
        """Called for what is no attribute, as the weight is."""
        if name == "weight" and _JOINED in self.__dict__ and self.joined.tensors:
            weight = self.joined.find_weight(self.__dict__.pop(_INDEX))
            del self.__dict__[_JOINED]
            self.__class__ = torch.nn.Linear  # type: ignore[assignment]
            self.weight = torch.nn.Parameter(weight, requires_grad=False)
            return self.weight
        return super().__getattr__(name)


def join_layers(
    model: torch.nn.Module, groups: Iterable[Sequence[str]] = (), *, but: torch.nn.Module | None = None
) -> None:
    """Give the linear layers of `model` products of the device: one for all layers of each of the `groups`, and one for
    each other layer. They stay the same objects, which other modules may refer to. Layers in `but` and of derived
    classes are left alone, and on the CPU those that this build of torch packs no weights for."""
    plain = _find_plain(model, but)
    found = [[plain.pop(name) for name in group] for group in groups if all(name in plain for name in group)]
    for layers in [*found, *([layer] for layer in plain.values())]:
        product = _multiply([layer.weight.data for layer in layers], layers)
        if product is not None:
            joined = JoinedProduct(layers, product)
            for index, layer in enumerate(layers):
                del layer.weight
                layer.__dict__ |= {_JOINED: joined, _INDEX: index}
                layer.__class__ = ModuleLinear


def _find_plain(model: torch.nn.Module, but: torch.nn.Module | None = None) -> dict[str, torch.nn.Linear]:
    """Return the linear layers outside of `but` that are of no derived class, by their names."""
    left = set() if but is None else set(but.modules())
    return {
        name: module for name, module in model.named_modules() if type(module) is torch.nn.Linear and module not in left
    }


def part_layers(model: torch.nn.Module) -> None:
    """Make the layers of `model` what they were before `join_layers`."""
    for _, layers in joined_layers(model):
        for layer in layers.values():
            _ = layer.weight


def joined_layers(model: torch.nn.Module) -> Iterator[tuple[JoinedProduct, Mapping[str, ModuleLinear]]]:
    """Yield all products with the layers of each, by their names."""
    found: dict[JoinedProduct, dict[str, ModuleLinear]] = {}
    for name, module in model.named_modules():
        if isinstance(module, ModuleLinear):
            found.setdefault(module.joined, {})[name] = module
    yield from found.items()


def _multiply(weights: Sequence[torch.Tensor], layers: Sequence[torch.nn.Linear]) -> Product | None:
    """Return the product with the weights [out, in] of `layers`; None where it is no faster than theirs."""
    biases = [layer.bias.data for layer in layers if layer.bias is not None]
    assert len(biases) in (0, len(layers))
    is_one = len(layers) == 1
    weight = weights[0] if is_one else torch.cat(list(weights))
    bias = None if not biases else biases[0] if is_one else torch.cat(biases)
    return try_packed(weight, bias) if weight.device.type == "cpu" else make_product(weight, bias)


@dataclass(slots=True)
class _Calls:
    """The layers that were called, with their inputs, in order."""

    made: list[tuple[torch.nn.Module, torch.Tensor]] = field(default_factory=list)

    def note(self, module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        if args:
            self.made.append((module, args[0]))


@contextmanager
def noting_inputs(model: torch.nn.Module) -> Iterator[list[tuple[str, ...]]]:
    """Note which linear layers of `model` take the same tensor inside of the block. Behind it, the list has the names
    of each group of layers that may be joined: of one parent, all with a bias or none, each called once."""
    layers = _find_plain(model)
    calls, groups = _Calls(), list[tuple[str, ...]]()
    hooks = [layer.register_forward_pre_hook(calls.note) for layer in layers.values()]
    try:
        yield groups
    finally:
        for hook in hooks:
            hook.remove()
    groups += _group(calls, layers)


def _group(calls: _Calls, layers: Mapping[str, torch.nn.Linear]) -> Iterator[tuple[str, ...]]:
    """Yield the names of `layers` that were called once, with one input, if there are several."""
    names = {layer: name for name, layer in layers.items()}
    numbers = Counter(module for module, _ in calls.made)
    owners = Counter(id(layer.weight) for layer in layers.values())
    found: dict[tuple[object, ...], list[str]] = {}
    for module, x in calls.made:
        assert isinstance(module, torch.nn.Linear)
        if numbers[module] == owners[id(module.weight)] == 1:
            parent = names[module].rpartition(".")[0]
            found.setdefault((parent, id(x), module.bias is None), []).append(names[module])
    return (tuple(group) for group in found.values() if len(group) > 1)

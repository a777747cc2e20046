"""Linear layers of Transformers' modules, with weights in the layout that computes fastest on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from seesay.device.linear.matmul import try_packed

if TYPE_CHECKING:
    from seesay.device.linear.linear_method import Product

_PRODUCT = "_seesay_product"


class PackedLinear(torch.nn.Linear):
    """A module's own layer, whose weight is packed and no parameter. Code that asks for `weight` gets it, and from then
    on the layer is what it was before."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        product: Product = self.__dict__[_PRODUCT]
        return product.run(input)

    def __getattr__(self, name: str) -> Any:
        """Called for what is no attribute, as the weight is."""
        if name == "weight" and _PRODUCT in self.__dict__:
            product: Product = self.__dict__.pop(_PRODUCT)
            self.__class__ = torch.nn.Linear  # type: ignore[assignment]
            self.weight = torch.nn.Parameter(product.tensors[0].to_dense(), requires_grad=False)
            return self.weight
        return super().__getattr__(name)

    @property
    def packed(self) -> tuple[torch.Tensor, ...]:
        """The packed weight; nothing once it is dropped."""
        product: Product | None = self.__dict__.get(_PRODUCT)
        return () if product is None else product.tensors[:1]

    def drop(self) -> None:
        """Free the weight. The layer computes nothing until it has another."""
        del self.__dict__[_PRODUCT]

    def take(self, weight: torch.Tensor) -> None:
        """Compute with another weight [out, in], and with the bias as it is now."""
        self.__dict__[_PRODUCT] = try_packed(weight, _bias_of(self))


def pack_layers(model: torch.nn.Module) -> None:
    """Pack the linear layers of `model`, which is on the CPU, where this build of torch can. They stay the same
    objects, which other modules may refer to. Layers of derived classes are left alone."""
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            product = try_packed(module.weight.data, _bias_of(module))
            if product is not None:
                del module.weight
                module.__dict__[_PRODUCT] = product
                module.__class__ = PackedLinear


def packed_layers(model: torch.nn.Module) -> Iterator[tuple[str, PackedLinear]]:
    """Yield the names and layers that have packed weights, or had until they were dropped."""
    for name, module in model.named_modules():
        if isinstance(module, PackedLinear):
            yield name, module


def _bias_of(module: torch.nn.Linear) -> torch.Tensor | None:
    return None if module.bias is None else module.bias.data

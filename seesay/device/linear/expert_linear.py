"""The linear layer that each expert of a mixture has: the weights of all experts are one matrix, loaded, quantized,
replaced and dropped like that of any other linear layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import torch
from torch import nn

from seesay.checkpoint.parts import Source, Weight
from seesay.device.backends import has_kernels
from seesay.device.linear.linear import Linear
from seesay.device.linear.linear_method import LinearKernel, Product, RowMatrix


class ExpertLinear(Linear):
    """y = x W_eᵀ + b_e for the expert e of each row.

    `sources` are the modules of the first expert that its outputs come from, one after another, named below the number
    of the expert beside the layer: those of a layer at `mlp.experts.down_proj` are `mlp.experts.0.down_proj` and so on.
    `experts` are those that it has of the stored `num_experts`; all by default. Others are another rank's.
    It is computed by `Ops.mix_experts`, which takes `matrix` and `bias` where kernels compute, else `kernels`.
    """

    def __init__(
        self,
        in_features: int,
        num_experts: int,
        *,
        sources: Sequence[Source],
        inputs: range | None = None,
        experts: range | None = None,
        bias: bool,
        has_own_bias: bool = True,
    ) -> None:
        experts = range(num_experts) if experts is None else experts
        every = [replace(each, module=f"{e}.{each.module}") for e in experts for each in sources]
        super().__init__(in_features, bias=bias, has_own_bias=has_own_bias, sources=every, inputs=inputs)
        self.experts = experts
        foreign = [e for e in range(num_experts) if e not in experts]
        self._foreign_modules = tuple(f"{e}.{each.module}" for e in foreign for each in sources)

    @property
    def matrix(self) -> RowMatrix:
        """The weights of all experts, [experts · outputs, inputs]."""
        assert isinstance(self._product, _ExpertProduct) and self._product.matrix is not None
        return self._product.matrix

    @property
    def kernels(self) -> Sequence[LinearKernel]:
        """The kernels that compute the layer, one for each of `experts`."""
        assert isinstance(self._product, _ExpertProduct)
        return self._product.kernels

    def why_not(self, device: torch.device) -> str | None:
        if has_kernels(device) and not self.method.makes_matrix:
            return f"there are no kernels for experts in {self.method.name}"
        return None

    def unread_at(self, path: str) -> tuple[str, ...]:
        parent = path.rpartition(".")[0]
        return (*super().unread_at(path), *(f"{parent}.{module}" for module in self._foreign_modules))

    def _prepare(self, weights: Mapping[str, Weight], bias: torch.Tensor | None) -> tuple[Product, torch.Tensor | None]:
        first = next(iter(weights.values())).data
        self.weight = nn.Parameter(first.new_empty(0), requires_grad=False)
        make = self._make_whole if has_kernels(first.device) else self._make_each
        product = make(weights, bias)
        for weight in weights.values():
            del weight.data
        return product, bias

    def _make_whole(self, weights: Mapping[str, Weight], bias: torch.Tensor | None) -> Product:
        """Return the product for kernels that take the rows of the matrix that are an expert's."""
        make_matrix = self.method.prepare(weights, None, self.sizes).make_matrix
        assert make_matrix is not None, "why_not refuses such methods"
        matrix = make_matrix()
        tensors = [tensor for tensor in (matrix.numbers, matrix.scale, bias) if tensor is not None]
        return _ExpertProduct(tensors=tuple(tensors), run=_refuse, add=_refuse, matrix=matrix)

    def _make_each(self, weights: Mapping[str, Weight], bias: torch.Tensor | None) -> Product:
        """Return products of the experts one by one."""
        count = len(self.experts)
        pieces = {name: weight.split(count) for name, weight in weights.items()}
        biases: Sequence[torch.Tensor | None] = [None] * count if bias is None else bias.chunk(count)
        sizes = replace(self.sizes, outputs=self.sizes.outputs[: len(self.sizes.outputs) // count])
        products = [
            self.method.prepare({name: of_all[e] for name, of_all in pieces.items()}, biases[e], sizes)
            for e in range(count)
        ]
        return _ExpertProduct(
            tensors=tuple(tensor for product in products for tensor in product.tensors),
            run=_refuse,
            add=_refuse,
            kernels=tuple(product.run for product in products),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExpertProduct(Product):
    """matrix: that of all experts. kernels: what computes each expert. One of them is there."""

    matrix: RowMatrix | None = None
    kernels: Sequence[LinearKernel] = ()


def _refuse(*_: object) -> NoReturn:
    raise AssertionError("the layer of experts computes nothing without a choice of experts")

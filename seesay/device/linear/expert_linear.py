"""The linear layer that each expert of a mixture has: the weights of all experts are one matrix, loaded, quantized,
replaced and dropped like that of any other linear layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

import torch
from torch import nn

from seesay.checkpoint.parts import Source, Stack, Weight
from seesay.device.backends import has_kernels
from seesay.device.linear.fixed_rows import fix_rows
from seesay.device.linear.linear import Linear
from seesay.device.linear.linear_method import LinearKernel, Product, RowMatrix


@dataclass(frozen=True, slots=True)
class ExpertAdaptation:
    """An addition to the outputs of a layer of experts. Rows are assignments: a token and one of its experts.

    begin(tokens, experts): take the tokens and the experts of the rows that come next, both int64 [N], experts being
    numbered among those of the layer, -1: one that is not there. add(x, y): add it for inputs x [N, in] to outputs y
    [N, out] in place.
    """

    begin: Callable[[torch.Tensor, torch.Tensor], None]
    add: Callable[[torch.Tensor, torch.Tensor], None]


class ExpertLinear(Linear):
    """y = x W_eᵀ + b_e for the expert e of each row.

    `sources` are the modules of the first expert that its outputs come from, one after another, named below the number
    of the expert beside the layer: those of a layer at `mlp.experts.down_proj` are `mlp.experts.0.down_proj` and so on.
    is_stacked: they are modules of all experts, named beside the layer; of plain weights and FP8 with their axes in the
    opposite order where it `is_transposed`: see `Part`.
    `experts` are those that it has of the stored `num_experts`; all by default. Others are another rank's.
    It is computed by `Ops.mix_experts`, which takes `matrix` and `bias` where kernels compute, else `kernels`, and what
    `expert_adaptation` adds; None: nothing. is_apart: whether it takes `kernels` on all devices.

    expert_sources: the sources of an expert, as given. num_experts: of the stored ones.
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
        is_stacked: bool = False,
        is_transposed: bool | None = False,
    ) -> None:
        experts = range(num_experts) if experts is None else experts
        find = partial(_find_in_stack, count=num_experts) if is_stacked else _find_by_number
        every = [find(each, e) for e in experts for each in sources]
        super().__init__(
            in_features,
            bias=bias,
            has_own_bias=has_own_bias,
            sources=every,
            inputs=inputs,
            is_transposed=is_transposed,
        )
        self.experts, self.num_experts = experts, num_experts
        self.expert_sources = tuple(sources)
        self.expert_adaptation: ExpertAdaptation | None = None
        self.is_apart = False
        self._expert_observers: Mapping[int, Callable[[torch.Tensor], None]] = {}
        foreign = set(range(num_experts)) - set(experts)
        every_module = {find(each, e).module for e in foreign for each in sources}
        self._foreign_modules = tuple(every_module - {each.module for each in every})

    @property
    def matrix(self) -> RowMatrix:
        """The weights of all experts, [experts · outputs, inputs]."""
        assert isinstance(self._product, _ExpertProduct) and self._product.matrix is not None
        return self._product.matrix

    @property
    def kernels(self) -> Sequence[LinearKernel]:
        """The kernels that compute the layer, one for each of `experts`."""
        assert isinstance(self._product, _ExpertProduct)
        if not self._expert_observers:
            return self._product.kernels
        return [self._watch(number, kernel) for number, kernel in enumerate(self._product.kernels)]

    def observe_experts(self, observers: Mapping[int, Callable[[torch.Tensor], None]]) -> None:
        """Call a function with the inputs [N, in] of each expert, by its number among `experts`, in place of those of
        an earlier call. The layer is one that `is_apart`."""
        self._expert_observers = observers

    def _watch(self, number: int, kernel: LinearKernel) -> LinearKernel:
        observe = self._expert_observers.get(number)
        if observe is None:
            return kernel

        def watched(x: torch.Tensor) -> torch.Tensor:
            observe(x)
            return kernel(x)

        return watched

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
        make = self._make_whole if has_kernels(first.device) and not self.is_apart else self._make_each
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
        if self._fixed_dtype is not None:
            products = [
                fix_rows(product, bias, sizes, dtype=self._fixed_dtype, name=self.method.name)
                for product, bias in zip(products, biases, strict=True)
            ]
        return _ExpertProduct(
            tensors=tuple(tensor for product in products for tensor in product.tensors),
            run=_refuse,
            add=_refuse,
            kernels=tuple(product.run for product in products),
        )


def _find_in_stack(source: Source, expert: int, count: int) -> Source:
    return replace(source, stack=Stack(expert, count))


def _find_by_number(source: Source, expert: int) -> Source:
    return replace(source, module=f"{expert}.{source.module}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExpertProduct(Product):
    """matrix: that of all experts. kernels: what computes each expert. One of them is there."""

    matrix: RowMatrix | None = None
    kernels: Sequence[LinearKernel] = ()


def _refuse(*_: object) -> NoReturn:
    raise AssertionError("the layer of experts computes nothing without a choice of experts")

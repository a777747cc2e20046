"""A linear layer of the checkpoint whose matrix is multiplied with in other ways than x Wᵀ: no format of quantized
weights has kernels for these, so such a weight is multiplied out when it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F

from seesay.checkpoint.parts import Source, TensorLayout, Weight
from seesay.device.linear.linear import UNQUANTIZED, Linear
from seesay.device.linear.linear_method import LinearMethod, Product, RowMatrix, Sizes


class MatrixLinear(Linear):
    """A linear layer that has its weight as a plain matrix. It has no bias, and is not quantized while it is loaded."""

    def __init__(self, in_features: int, sources: Sequence[Source]) -> None:
        super().__init__(in_features, bias=False, sources=sources, is_quantizable=False)
        self.method = MultipliedOut(UNQUANTIZED, torch.get_default_dtype())

    @property
    def matrix(self) -> torch.Tensor:
        """The weight [out, in] in the type of the model."""
        assert self._product is not None and self._product.make_matrix is not None
        return self._product.make_matrix().numbers


class MultipliedOut:
    """The weights that `method` loads, as a plain matrix in `dtype`, that of the model."""

    makes_matrix = True

    def __init__(self, method: LinearMethod, dtype: torch.dtype) -> None:
        self.name = method.name if method is UNQUANTIZED else f"{method.name}, multiplied out"
        self._method, self._dtype = method, dtype

    def layouts(self, num_inputs: int) -> Mapping[str, TensorLayout]:
        return self._method.layouts(num_inputs)

    def prepare(self, weights: Mapping[str, Weight], bias: torch.Tensor | None, sizes: Sizes) -> Product:
        assert bias is None
        matrix = weights["weight"].data if self._method is UNQUANTIZED else self._multiply_out(weights, sizes)

        def add(target: torch.Tensor, x: torch.Tensor) -> None:
            target.addmm_(x, matrix.t())

        return Product(
            tensors=(matrix,),
            run=partial(F.linear, weight=matrix),
            add=add,
            make_matrix=partial(RowMatrix, matrix),
        )

    def _multiply_out(self, weights: Mapping[str, Weight], sizes: Sizes) -> torch.Tensor:
        """Return the matrix as the product with one input at a time, which every format has."""
        product = self._method.prepare(weights, None, sizes)
        one_by_one = torch.eye(sizes.inputs, dtype=self._dtype, device=product.tensors[0].device)
        return product.run(one_by_one).t().contiguous()

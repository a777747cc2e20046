"""Methods of weights in numbers of one byte, FP8 (e4m3) or int8, with a scale per output or tensor: as a checkpoint has
them, or of plain weights that become such numbers when they are loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from seesay.checkpoint.parts import INPUTS, OUTPUTS, TensorLayout, Weight
from seesay.checkpoint.quantization import Quantization
from seesay.device.linear.linear_method import Product, Sizes
from seesay.device.linear.packed_weight import cut_outputs
from seesay.device.linear.row_quantization import QuantizedRows, RowFormat, quantize_rows
from seesay.device.linear.scaled_weights import (
    check_finite,
    check_numbers,
    list_layouts,
    note_static_scales,
    scale_per_output,
)


class MakeProduct(Protocol):
    def __call__(
        self, numbers: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, sizes: Sizes, dtype: torch.dtype
    ) -> Product:
        """Return the product in `dtype` with numbers [out, in] and a scale float32 [out] per output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberKind:
    """A type of numbers. stored_dtype: as safetensors names it. rows: how rows of activations become such numbers."""

    name: str
    stored_dtype: str
    rows: RowFormat
    make_product: MakeProduct


class OneByte:
    """Numbers that a checkpoint has, with a scale per output or tensor."""

    makes_matrix = True

    def __init__(self, kind: NumberKind, quantization: Quantization, dtype: torch.dtype) -> None:
        assert quantization.is_stored and quantization.strategy in ("tensor", "channel")
        self.name = f"{kind.name} {quantization.strategy}"
        self._kind, self._quantization, self._dtype = kind, quantization, dtype
        if quantization.has_input_scale:
            note_static_scales()

    def layouts(self, num_inputs: int) -> Mapping[str, TensorLayout]:  # noqa: ARG002
        return list_layouts(self._quantization, self._kind.stored_dtype, self._kind.rows.dtype)

    def prepare(self, weights: Mapping[str, Weight], bias: torch.Tensor | None, sizes: Sizes) -> Product:
        check_numbers(weights, self._dtype)
        weight = weights["weight"]
        scale = scale_per_output(weight, weights["scale"])
        return self._kind.make_product(weight.data, scale, bias, sizes, self._dtype)


class OneByteInFlight:
    """Plain weights, quantized with one scale per output when they are loaded."""

    makes_matrix = True

    def __init__(self, kind: NumberKind) -> None:
        self.name = f"{kind.name} in flight"
        self._kind = kind

    def layouts(self, num_inputs: int) -> Mapping[str, TensorLayout]:  # noqa: ARG002
        return {"weight": TensorLayout(name="weight", axes=((OUTPUTS, 1), (INPUTS, 1)))}

    def prepare(self, weights: Mapping[str, Weight], bias: torch.Tensor | None, sizes: Sizes) -> Product:
        check_finite(weights["weight"])
        weight = weights["weight"].data
        numbers, scale = quantize_matrix(weight, self._kind.rows)
        return self._kind.make_product(numbers, scale.flatten(), bias, sizes, weight.dtype)


def quantize_matrix(matrix: torch.Tensor, form: RowFormat) -> QuantizedRows:
    """Return what `quantize_rows` returns, for a large matrix [out, in] with one scale per row. Some rows are quantized
    at a time, so that temporary memory does not grow with the matrix."""
    numbers = torch.empty(matrix.shape, dtype=form.dtype, device=matrix.device)
    scale = torch.empty(len(matrix), 1, dtype=torch.float32, device=matrix.device)
    for start, stop in cut_outputs(*matrix.shape):
        numbers[start:stop], scale[start:stop] = quantize_rows(matrix[start:stop], form)
    return QuantizedRows(numbers, scale)

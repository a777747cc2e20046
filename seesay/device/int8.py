"""Int8 weights with a scale per output or tensor, and int8 activations with a scale per token (W8A8). For a few tokens,
weights are multiplied with plain activations. On the CPU weights are multiplied out when they are loaded, which is also
the reference for tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F

from seesay.checkpoint.parts import INPUTS, OUTPUTS, TensorLayout, Weight
from seesay.checkpoint.quantization import Quantization
from seesay.device.backends import has_kernels
from seesay.device.linear_method import Product, Sizes
from seesay.device.quantized_product import make_quantized_product
from seesay.device.row_quantization import INT8_ROWS, QuantizedRows, quantize_rows
from seesay.device.scaled_weights import (
    check_finite,
    check_numbers,
    list_layouts,
    multiply_out,
    scale_per_output,
    warn_multiplied_out,
    why_not_aligned,
)

_ALIGNMENT = 16
"""cuBLASLt multiplies int8 matrices whose sizes are multiples of 8, kernels read 16 numbers at once."""
_MIN_CUBLAS_ROWS = 17
"""cuBLASLt's int8 product takes more than 16 rows."""


class Int8:
    """Int8 weights that a checkpoint has."""

    def __init__(self, quantization: Quantization, dtype: torch.dtype) -> None:
        assert quantization.is_stored and quantization.strategy in ("tensor", "channel")
        self.name = f"int8 {quantization.strategy}"
        self._quantization, self._dtype = quantization, dtype

    def layouts(self, num_inputs: int) -> Mapping[str, TensorLayout]:  # noqa: ARG002
        return list_layouts(self._quantization, "I8", torch.int8)

    def prepare(self, weights: Mapping[str, Weight], bias: torch.Tensor | None, sizes: Sizes) -> Product:
        check_numbers(weights)
        weight = weights["weight"]
        scale = scale_per_output(weight, weights["scale"])
        return make_int8_product(weight.data, scale, bias, sizes, self._dtype)


class Int8InFlight:
    """Plain weights, quantized with one scale per output when they are loaded."""

    name = "int8 in flight"

    def layouts(self, num_inputs: int) -> Mapping[str, TensorLayout]:  # noqa: ARG002
        return {"weight": TensorLayout(name="weight", axes=((OUTPUTS, 1), (INPUTS, 1)))}

    def prepare(self, weights: Mapping[str, Weight], bias: torch.Tensor | None, sizes: Sizes) -> Product:
        check_finite(weights["weight"])
        weight = weights["weight"].data
        numbers, scale = quantize_rows(weight, INT8_ROWS)
        return make_int8_product(numbers, scale.flatten(), bias, sizes, weight.dtype)


def make_int8_product(
    numbers: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, sizes: Sizes, dtype: torch.dtype
) -> Product:
    """Return the product in `dtype` with int8 numbers [out, in] and a scale float32 [out] per output."""
    reason = _why_not(numbers, sizes)
    if reason is None:
        return _make_scaled_product(numbers, scale.contiguous(), bias, dtype)
    if numbers.device.type == "cuda":
        warn_multiplied_out(reason)
    return multiply_out(numbers, scale, bias, sizes, dtype)


def _why_not(numbers: torch.Tensor, sizes: Sizes) -> str | None:
    """Return why int8 matrices cannot be multiplied; None if they can."""
    if numbers.device.type == "cpu":
        return "int8 products need a GPU"
    if torch.cuda.get_device_capability(numbers.device) < (8, 0):
        return "int8 products need compute capability 8.0 (Ampere), this GPU has less"
    return why_not_aligned(numbers.shape, sizes, _ALIGNMENT, "int8")


def _make_scaled_product(
    numbers: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
) -> Product:
    if has_kernels(numbers.device):
        from seesay.kernels.scaled_matmul import multiply_scaled

        multiply = partial(multiply_scaled, weight=numbers, scale=scale, dtype=dtype)
    else:
        multiply = partial(multiply_exactly, weight=numbers, scale=scale, dtype=dtype)
    return make_quantized_product(numbers, scale, bias, multiply=multiply, rows=INT8_ROWS, dtype=dtype)


def multiply_exactly(
    rows: QuantizedRows,
    bias: torch.Tensor | None,
    *,
    weight: torch.Tensor,
    scale: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return rows [N, in] times int8 weight [out, in] times scale [out], plus the bias, in `dtype`. Sums of products of
    integers are exact."""
    num_rows, padding = len(rows.numbers), 0
    if weight.device.type != "cpu":
        padding = max(0, _MIN_CUBLAS_ROWS - num_rows)
    sums = torch._int_mm(F.pad(rows.numbers, (0, 0, 0, padding)), weight.t())[:num_rows]
    product = sums.float() * rows.scale * scale
    return (product if bias is None else product + bias.float()).to(dtype)

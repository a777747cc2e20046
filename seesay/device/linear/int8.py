"""Products with int8 weights that have a scale per output, and int8 activations with a scale per token (W8A8). For a
few tokens, weights are multiplied with plain activations. On the CPU weights are multiplied out when they are loaded,
which is also the reference for tests.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from seesay.device.backends import has_kernels
from seesay.device.linear.linear_method import Product, Sizes
from seesay.device.linear.one_byte import NumberKind
from seesay.device.linear.quantized_product import make_quantized_product
from seesay.device.linear.row_quantization import INT8_ROWS, QuantizedRows
from seesay.device.linear.scaled_weights import make_plain_product, warn_multiplied_out, why_not_aligned
from seesay.device.query import find_capability

_ALIGNMENT = 16
"""cuBLASLt multiplies int8 matrices whose sizes are multiples of 8, kernels read 16 numbers at once."""
_MIN_CUBLAS_ROWS = 17
"""cuBLASLt's int8 product takes more than 16 rows."""


def make_int8_product(
    numbers: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, sizes: Sizes, dtype: torch.dtype
) -> Product:
    """Return the product in `dtype` with int8 numbers [out, in] and a scale float32 [out] per output."""
    reason = _why_not(numbers, sizes)
    if reason is None:
        return _make_scaled_product(numbers, scale.contiguous(), bias, dtype)
    if numbers.device.type != "cpu":
        warn_multiplied_out(reason)
    return make_plain_product(numbers, scale, bias, sizes, dtype)


def _why_not(numbers: torch.Tensor, sizes: Sizes) -> str | None:
    """Return why int8 matrices cannot be multiplied; None if they can."""
    if numbers.device.type == "cpu":
        return "int8 products need a GPU"
    if find_capability(numbers.device) < (8, 0):
        return "int8 products need an NVIDIA GPU of compute capability 8.0 (Ampere)"
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


INT8_NUMBERS = NumberKind(name="int8", stored_dtype="I8", rows=INT8_ROWS, make_product=make_int8_product)

"""Products with FP8 weights (e4m3) that have a scale per output. On a GPU that multiplies FP8, every token is scaled by
its own maximum; for a few tokens, weights are multiplied with plain activations. Elsewhere weights are multiplied out
when they are loaded, which is also the reference for tests.
"""

from __future__ import annotations

import torch

from seesay.device.linear.linear_method import Product, Sizes
from seesay.device.linear.one_byte import NumberKind
from seesay.device.linear.quantized_product import make_quantized_product
from seesay.device.linear.row_quantization import FP8_ROWS, QuantizedRows
from seesay.device.linear.scaled_weights import make_plain_product, warn_multiplied_out, why_not_aligned
from seesay.device.query import find_capability

FP8 = torch.float8_e4m3fn
MAX_FP8 = FP8_ROWS.largest
_ALIGNMENT = 16
"""cuBLASLt multiplies FP8 matrices whose sizes are multiples of this."""


def make_channel_product(
    numbers: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, sizes: Sizes, dtype: torch.dtype
) -> Product:
    """Return the product in `dtype` with FP8 numbers [out, in] and a scale float32 [out] per output."""
    reason = _why_not(numbers, sizes, dtype)
    if reason is None:
        return _make_scaled_product(numbers, scale, bias)
    if numbers.device.type != "cpu":
        warn_multiplied_out(reason)
    return make_plain_product(numbers, scale, bias, sizes, dtype)


def why_no_fp8(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why FP8 matrices cannot be multiplied on this device for this dtype; None if they can."""
    if device.type == "cpu":
        return "FP8 products need a GPU"
    if find_capability(device) < (8, 9):
        return "FP8 products need an NVIDIA GPU of compute capability 8.9 (Ada, Hopper); int8 weights run on others"
    if dtype != torch.bfloat16:
        return f"FP8 products need dtype bfloat16, got {str(dtype).removeprefix('torch.')}"
    return None


def _why_not(numbers: torch.Tensor, sizes: Sizes, dtype: torch.dtype) -> str | None:
    return why_no_fp8(numbers.device, dtype) or why_not_aligned(numbers.shape, sizes, _ALIGNMENT, "FP8")


def _make_scaled_product(numbers: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> Product:
    transposed, scale = numbers.t(), scale.contiguous()

    def multiply(rows: QuantizedRows, bias: torch.Tensor | None) -> torch.Tensor:
        product: torch.Tensor = torch._scaled_mm(
            rows.numbers,
            transposed,
            rows.scale,
            scale[None, :],
            bias=bias,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
        return product

    return make_quantized_product(numbers, scale, bias, multiply=multiply, rows=FP8_ROWS, dtype=torch.bfloat16)


FP8_NUMBERS = NumberKind(name="fp8", stored_dtype="F8_E4M3", rows=FP8_ROWS, make_product=make_channel_product)

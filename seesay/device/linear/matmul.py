"""The product of rows with an unquantized weight matrix, by the fastest kernels of the device. The layout of the matrix
in memory is decided here.

On the CPU, oneDNN's kernels with a prepacked weight are two to seven times as fast as those that
`torch.nn.functional.linear` picks (measured on an AVX-512 machine, float32 and bfloat16, 1 to 480 rows).
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from seesay.device.backends import has_kernels
from seesay.device.linear.linear_method import Product, RowMatrix
from seesay.device.query import find_capability

_PACKED_FOR_ROWS = 64
"""The number of rows for which weights are packed. The kernels accept any number; this choice is fast for all."""


def make_product(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """Return the product with weight [out, in] and bias [out], which it owns from now on. No gradients.

    On the CPU it holds a packed copy instead of `weight`, so that the caller can free `weight`.
    """
    if weight.device.type == "cpu":
        packed = try_packed(weight, bias)
        if packed is not None:
            return packed

    def run(x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight, bias)

    def add(target: torch.Tensor, x: torch.Tensor) -> None:
        target.addmm_(x, weight.t())

    tensors = (weight,) if bias is None else (weight, bias)
    product = partial(Product, tensors=tensors, run=run, add=add, make_matrix=lambda: RowMatrix(weight))
    max_rows = max_fused_rows(weight.device, weight.dtype)
    if not max_rows:
        return product()
    from seesay.kernels.few_rows.few_row_matmul import multiply

    fused = partial(multiply, weight=weight, bias=bias)
    return product(fused=fused, max_fused_rows=max_rows, fuses_low_rank=True)


def max_fused_rows(device: torch.device, dtype: torch.dtype) -> int:
    """Return the largest number of rows for `seesay.kernels.few_rows.few_row_matmul.multiply`; 0 if it cannot run."""
    if not has_kernels(device):
        return 0
    from seesay.kernels.few_rows.few_row_tilings import MAX_ROWS

    # More than one row was measured on Hopper only, and needs its shared memory.
    return MAX_ROWS if dtype.itemsize == 2 and find_capability(device) >= (9, 0) else 1


def try_packed(weight: torch.Tensor, bias: torch.Tensor | None) -> Product | None:
    """Return the product with a packed weight, which is the first of its tensors; None if this build of torch or this
    CPU has none for the dtype. `weight` is on the CPU."""
    if weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    try:
        with torch.inference_mode():
            packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)
            apply = torch.ops.mkldnn._linear_pointwise.default
            apply(weight.new_zeros(1, weight.shape[1]), packed, bias, "none", [], "")
    except (AttributeError, RuntimeError):
        return None

    def run(x: torch.Tensor) -> torch.Tensor:
        return apply(x, packed, bias, "none", [], "")  # type: ignore[no-any-return]

    def add(target: torch.Tensor, x: torch.Tensor) -> None:
        target.add_(apply(x, packed, None, "none", [], ""))

    return Product(tensors=(packed,) if bias is None else (packed, bias), run=run, add=add)

"""Products of quantized rows with weights of one byte per number."""

from __future__ import annotations

from functools import partial
from typing import Protocol

import torch

from seesay.device.linear.linear_method import Product, RowMatrix
from seesay.device.linear.matmul import max_fused_rows
from seesay.device.linear.row_quantization import QuantizedRows, RowFormat, pick_quantizer


class Multiply(Protocol):
    def __call__(self, rows: QuantizedRows, bias: torch.Tensor | None) -> torch.Tensor:
        """Return rows [N, in] times the weight, plus the bias: [N, out]."""


def make_quantized_product(
    numbers: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    multiply: Multiply,
    rows: RowFormat,
    dtype: torch.dtype,
    group_size: int | None = None,
) -> Product:
    """Return the product in `dtype` whose inputs become `rows` before `multiply`. For a few rows it takes the kernel
    that reads weights as they are and multiplies them with plain activations.

    numbers [out, in]; scale float32 [out], or [out, groups] for groups of `group_size` inputs.
    """
    quantize, num_outputs = pick_quantizer(numbers.device, rows), len(numbers)

    def run_rows(rows: QuantizedRows) -> torch.Tensor:
        if not len(rows.numbers):
            return torch.empty(0, num_outputs, dtype=dtype, device=numbers.device)
        return multiply(rows, bias)

    def run(x: torch.Tensor) -> torch.Tensor:
        return run_rows(quantize(x.flatten(0, -2))).view(*x.shape[:-1], num_outputs)

    def add(target: torch.Tensor, x: torch.Tensor) -> None:
        if x.numel():
            target.add_(multiply(quantize(x), None))

    tensors = (numbers, scale) if bias is None else (numbers, scale, bias)
    matrix = RowMatrix(numbers, scale, group_size)
    product = partial(
        Product, tensors=tensors, run=run, add=add, rows=rows, run_rows=run_rows, make_matrix=lambda: matrix
    )
    max_rows = max_fused_rows(numbers.device, dtype)
    if not max_rows:
        return product()
    from seesay.kernels.few_rows.few_row_matmul import multiply as multiply_few

    fused = partial(multiply_few, weight=numbers, bias=bias, scale=scale, group_size=group_size)
    return product(fused=fused, max_fused_rows=max_rows)

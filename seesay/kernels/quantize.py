"""Rows of activations in FP8 (e4m3), each with a scale of its own."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seesay.kernels.sizes import power_of_2_from

_LARGEST_SPAN = 8192


@triton.jit
def quantize_rows_kernel(
    x_ptr, out_ptr, scale_ptr, x_stride, SIZE: tl.constexpr, SPAN: tl.constexpr, MAX: tl.constexpr
):
    """Program i writes row i of x [N, SIZE] divided by its scale to out [N, SIZE], and the scale to scale [N].

    What is not finite in x is NaN in out, or makes the row's scale infinite and the row NaN.
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, SPAN)
    largest = tl.zeros([SPAN], tl.float32)
    for first in range(0, SIZE, SPAN):
        is_element = first + columns < SIZE
        x = tl.load(x_ptr + row * x_stride + first + columns, mask=is_element, other=0.0)
        largest = tl.maximum(largest, tl.abs(x.to(tl.float32)))
    scale = tl.maximum(tl.max(largest, axis=0), 1e-12) / MAX
    tl.store(scale_ptr + row, scale)
    for first in range(0, SIZE, SPAN):
        is_element = first + columns < SIZE
        x = tl.load(x_ptr + row * x_stride + first + columns, mask=is_element, other=0.0)
        quotient = x.to(tl.float32) / scale
        tl.store(out_ptr + row * SIZE + first + columns, quotient.to(out_ptr.dtype.element_ty), mask=is_element)


def quantize_rows(x: torch.Tensor, largest: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x [N, K] in FP8, and the scales float32 [N, 1] that give it back. A row's largest number becomes
    `largest`."""
    num_rows, size = x.shape
    assert x.stride(1) == 1
    out = torch.empty(num_rows, size, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(num_rows, 1, dtype=torch.float32, device=x.device)
    span = min(_LARGEST_SPAN, power_of_2_from(size))
    if num_rows:
        quantize_rows_kernel[(num_rows,)](
            x, out, scale, x.stride(0), SIZE=size, SPAN=span, MAX=largest, num_warps=4 if span <= 2048 else 8
        )
    return out, scale

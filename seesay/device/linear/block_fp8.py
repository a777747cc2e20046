"""FP8 weights (e4m3) with a scale for each block of outputs and inputs, as DeepSeek-V3 introduced them (arXiv
2412.19437, section 3.3). Activations get a scale for each token and each group of as many inputs as a block has.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from seesay.checkpoint.parts import TensorLayout, Weight
from seesay.checkpoint.quantization import Quantization
from seesay.device.backends import has_kernels
from seesay.device.linear.fp8 import FP8, MAX_FP8, why_no_fp8
from seesay.device.linear.linear_method import Product, Sizes, pad_matrix
from seesay.device.linear.matmul import make_product
from seesay.device.linear.quantized_product import make_quantized_product
from seesay.device.linear.row_quantization import QuantizedRows, RowFormat
from seesay.device.linear.scaled_weights import (
    check_numbers,
    list_layouts,
    multiply_out,
    warn_multiplied_out,
    why_not_aligned,
)

_ALIGNMENT = 16
_GROUP_SIZES = (32, 64, 128, 256)
"""Inputs of a block that the kernels have tiles for."""


class BlockFp8:
    """FP8 weights that a checkpoint has, with a scale per block of `block_size`. Each source of a layer begins with a
    block of its own, so in memory every output has its row of scales: 1/32 of the weights' bytes for blocks of 128."""

    makes_matrix = True

    def __init__(self, quantization: Quantization, dtype: torch.dtype) -> None:
        assert quantization.is_stored and quantization.strategy == "block"
        self.name = "fp8 block"
        self._quantization, self._dtype = quantization, dtype

    def layouts(self, num_inputs: int) -> Mapping[str, TensorLayout]:  # noqa: ARG002
        return list_layouts(self._quantization, "F8_E4M3", FP8)

    def prepare(self, weights: Mapping[str, Weight], bias: torch.Tensor | None, sizes: Sizes) -> Product:
        check_numbers(weights, self._dtype)
        weight, group_size = weights["weight"], self._quantization.block_size[1]
        scale = self._scale_per_output(weight, weights["scale"])
        reason = _why_not(weight.data, sizes, self._dtype, group_size)
        if reason is None:
            return make_block_product(weight.data, scale, bias, self._dtype, group_size)
        if weight.data.device.type != "cpu":
            warn_multiplied_out(reason)
        return make_product(pad_matrix(multiply_out(weight.data, scale, group_size, self._dtype), sizes), bias)

    def _scale_per_output(self, weight: Weight, scale: Weight) -> torch.Tensor:
        """Return scales [out, groups of inputs]."""
        num_outputs = self._quantization.block_size[0]
        pieces = []
        for (_, numbers), (part, scales) in zip(weight.places(), scale.places(), strict=True):
            order = part.output_order() or (range(len(numbers)),)
            outputs = torch.cat([torch.arange(run.start, run.stop, run.step) for run in order])
            pieces.append(scales.index_select(0, (outputs // num_outputs).to(scales.device)))
        return torch.cat(pieces).t().contiguous().t()  # outputs side by side, as kernels read them


def _why_not(numbers: torch.Tensor, sizes: Sizes, dtype: torch.dtype, group_size: int) -> str | None:
    """Return why the kernels cannot multiply these matrices; None if they can."""
    if reason := why_no_fp8(numbers.device, dtype):
        return reason
    if not has_kernels(numbers.device):
        return "products of FP8 blocks need Triton"
    if group_size not in _GROUP_SIZES:
        return f"products of FP8 blocks need {' or '.join(map(str, _GROUP_SIZES))} inputs in a block, got {group_size}"
    return why_not_aligned(numbers.shape, sizes, _ALIGNMENT, "FP8")


def make_block_product(
    numbers: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, group_size: int
) -> Product:
    """Return the product in `dtype` with FP8 numbers [out, in] and scales float32 [out, groups of inputs]."""
    rows = RowFormat(FP8, MAX_FP8, group_size)
    if has_kernels(numbers.device):
        from seesay.kernels.scaled_matmul import multiply_scaled

        multiply = partial(multiply_scaled, weight=numbers, scale=scale, dtype=dtype, group_size=group_size)
    else:
        multiply = partial(multiply_exactly, weight=numbers, scale=scale, dtype=dtype, group_size=group_size)
    return make_quantized_product(
        numbers, scale, bias, multiply=multiply, rows=rows, dtype=dtype, group_size=group_size
    )


def multiply_exactly(
    rows: QuantizedRows,
    bias: torch.Tensor | None,
    *,
    weight: torch.Tensor,
    scale: torch.Tensor,
    dtype: torch.dtype,
    group_size: int,
) -> torch.Tensor:
    """Return rows [N, in] times weight [out, in], both multiplied out, plus the bias: the reference for the kernel."""
    plain = multiply_out(rows.numbers, rows.scale, group_size, torch.float32)
    product = plain @ multiply_out(weight, scale, group_size, torch.float32).t()
    return (product if bias is None else product + bias.float()).to(dtype)

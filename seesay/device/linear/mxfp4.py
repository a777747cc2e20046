"""Experts in MXFP4 (Rouhani et al. 2023, "Microscaling Data Formats"): numbers of 4 bits (e2m1), two in a byte, with a
power of two for every 32 inputs. Where kernels compute, each number becomes one of FP8, which has all of its values.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from seesay.checkpoint.parts import INPUTS, OUTPUTS, TensorError, TensorLayout, Weight
from seesay.checkpoint.quantization.mxfp4 import GROUP_SIZE
from seesay.device.linear.block_fp8 import make_block_product
from seesay.device.linear.fp8 import FP8, why_no_fp8
from seesay.device.linear.linear_method import Product, Sizes, pad_matrix
from seesay.device.linear.matmul import make_product
from seesay.device.linear.packed_weight import cut_outputs
from seesay.device.linear.scaled_weights import multiply_out, warn_multiplied_out

_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_NO_NUMBER, _BIAS = 255, 127
_MANTISSA_BITS = 23
"""Of float32, whose exponents are those of the scales; its smallest, 0, has no leading 1 there."""


class Mxfp4:
    """`blocks` [outputs, groups, 16] and `scales` [outputs, groups], both of bytes. The lower half of a byte is the
    first number."""

    name = "mxfp4"
    makes_matrix = True

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def layouts(self, num_inputs: int) -> Mapping[str, TensorLayout]:
        del num_inputs
        axes = ((OUTPUTS, 1), (INPUTS, GROUP_SIZE))
        return {
            "blocks": TensorLayout(
                name="blocks", axes=axes, own_shape=(GROUP_SIZE // 2,), dtypes=("U8",), dtype=torch.uint8
            ),
            "scales": TensorLayout(name="scales", axes=axes, dtypes=("U8",), dtype=torch.uint8),
        }

    def prepare(self, weights: Mapping[str, Weight], bias: torch.Tensor | None, sizes: Sizes) -> Product:
        scale = _read_scales(weights["scales"], self._dtype)
        numbers = _unpack(weights["blocks"].data.flatten(1))
        reason = why_no_fp8(numbers.device, self._dtype)
        if reason is None:
            return make_block_product(numbers, scale, bias, self._dtype, GROUP_SIZE)
        if numbers.device.type != "cpu":
            warn_multiplied_out(reason)
        return make_product(pad_matrix(multiply_out(numbers, scale, GROUP_SIZE, self._dtype), sizes), bias)


def _read_scales(scales: Weight, dtype: torch.dtype) -> torch.Tensor:
    """Return the powers of two, float32 [outputs, groups]. Raises `TensorError` for those that are none, or by which
    numbers would not be finite in `dtype`."""
    largest = torch.finfo(dtype).max / _VALUES[-1]
    for part, place in () if scales.data.is_meta else scales.places():
        if (place == _NO_NUMBER).any() or torch.exp2(place.amax().float() - _BIAS) > largest:
            raise TensorError(part.tensor, "has scales that are not numbers, or too large")
    return (scales.data.int() << _MANTISSA_BITS).clamp_(min=1 << (_MANTISSA_BITS - 1)).view(torch.float32)


def _unpack(blocks: torch.Tensor) -> torch.Tensor:
    """Return the numbers in bytes [outputs, inputs / 2] in FP8, [outputs, inputs]. Some outputs are unpacked at a
    time, so that temporary memory does not grow with the matrix."""
    values = torch.tensor([*_VALUES, *(-value for value in _VALUES)]).to(FP8).view(torch.uint8).to(blocks.device)
    numbers = torch.empty(len(blocks), 2 * blocks.shape[1], dtype=torch.uint8, device=blocks.device)
    for start, stop in cut_outputs(*numbers.shape):
        packed = blocks[start:stop]
        halves = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)
        numbers[start:stop] = values.take(halves.long())
    return numbers.view(FP8)

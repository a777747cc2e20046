"""Experts in MXFP4 (Rouhani et al. 2023, "Microscaling Data Formats"): numbers of 4 bits (e2m1), two in a byte, with a
power of two for every 32 inputs. Where kernels compute, each number becomes one of FP8, which has all of its values,
and those times powers of two: where the scales of an output are within 2¹⁴ of each other, one is left of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from seesay.checkpoint.parts import INPUTS, OUTPUTS, TensorError, TensorLayout, Weight
from seesay.checkpoint.quantization.mxfp4 import GROUP_SIZE
from seesay.device.linear.block_fp8 import make_block_product
from seesay.device.linear.fp8 import FP8, make_channel_product, why_no_fp8
from seesay.device.linear.linear_method import Product, Sizes, pad_matrix
from seesay.device.linear.matmul import make_product
from seesay.device.linear.packed_weight import cut_outputs
from seesay.device.linear.scaled_weights import multiply_out, warn_multiplied_out

_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_NO_NUMBER, _BIAS = 255, 127
_MANTISSA_BITS = 23
"""Of float32, whose exponents are those of the scales; its smallest, 0, has no leading 1 there."""
_LEAST_SHIFT, _MOST_SHIFT = -8, 6
"""Powers of two by which FP8 has all multiples of `_VALUES`: 0.5 · 2⁻⁸ is its least number, 6 · 2⁶ below its most."""
_WITHOUT_SIGNS = 0x77


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
        exponents, blocks = _read_exponents(weights["scales"], self._dtype), weights["blocks"].data
        reason = why_no_fp8(blocks.device, self._dtype)
        if reason is None:
            folded = fold(blocks, exponents)
            if folded is not None:
                return make_channel_product(*folded, bias, sizes, self._dtype)
            return make_block_product(unpack(blocks), _to_float(exponents), bias, self._dtype, GROUP_SIZE)
        if blocks.device.type != "cpu":
            warn_multiplied_out(reason)
        numbers = multiply_out(unpack(blocks), _to_float(exponents), GROUP_SIZE, self._dtype)
        return make_product(pad_matrix(numbers, sizes), bias)


def _read_exponents(scales: Weight, dtype: torch.dtype) -> torch.Tensor:
    """Return the exponents with their bias, int32 [outputs, groups]. Raises `TensorError` for scales that are no
    numbers, or by which numbers would not be finite in `dtype`."""
    largest = torch.finfo(dtype).max / _VALUES[-1]
    for part, place in () if scales.data.is_meta else scales.places():
        if (place == _NO_NUMBER).any() or torch.exp2(place.amax().float() - _BIAS) > largest:
            raise TensorError(part.tensor, "has scales that are not numbers, or too large")
    return scales.data.int()


def _to_float(exponents: torch.Tensor) -> torch.Tensor:
    """Return the powers of two in float32."""
    return (exponents << _MANTISSA_BITS).clamp_(min=1 << (_MANTISSA_BITS - 1)).view(torch.float32)


def fold(blocks: torch.Tensor, exponents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the numbers of blocks [outputs, groups, 16] in FP8, [outputs, inputs], with one scale per output, float32
    [outputs], where that is exact; None elsewhere. exponents: int32 [outputs, groups], see `_read_exponents`."""
    if exponents.is_meta:
        return unpack(blocks), exponents.new_empty(len(exponents), dtype=torch.float32)
    used = torch.empty_like(exponents, dtype=torch.bool)
    for start, stop in cut_outputs(len(blocks), 2 * blocks[0].numel()):
        used[start:stop] = (blocks[start:stop] & _WITHOUT_SIGNS).any(dim=-1)
    most = torch.where(used, exponents, 0).amax(dim=1, keepdim=True)
    below = torch.where(used, most - exponents, 0)
    if int(below.max()) > _MOST_SHIFT - _LEAST_SHIFT:
        return None
    return unpack(blocks, _MOST_SHIFT - below), torch.exp2((most[:, 0] - _BIAS - _MOST_SHIFT).double()).float()


def unpack(blocks: torch.Tensor, shifts: torch.Tensor | None = None) -> torch.Tensor:
    """Return the numbers in blocks [outputs, groups, 16] in FP8, [outputs, inputs], those of each group times two to
    the power of its shift, int32 [outputs, groups]; by default 0. Some outputs are unpacked at a time, so temporary
    memory does not grow with the matrix."""
    plain = torch.tensor([*_VALUES, *(-value for value in _VALUES)])
    powers = torch.exp2(torch.arange(_LEAST_SHIFT, _MOST_SHIFT + 1))
    values = (powers[:, None] * plain).to(FP8).view(torch.uint8).flatten().to(blocks.device)
    numbers = torch.empty(len(blocks), 2 * blocks[0].numel(), dtype=torch.uint8, device=blocks.device)
    for start, stop in cut_outputs(*numbers.shape):
        packed = blocks[start:stop]
        halves = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(2).long()
        places = -_LEAST_SHIFT if shifts is None else (shifts[start:stop, :, None] - _LEAST_SHIFT).long()
        numbers[start:stop] = values.take(halves + 16 * places).flatten(1)
    return numbers.view(FP8)

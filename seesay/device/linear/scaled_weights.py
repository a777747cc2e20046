"""Layouts, checks and warnings of all formats that store weights as one byte each, FP8 or int8, with scales."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache

import torch

from seesay.checkpoint.parts import FLOATS, INPUTS, NEITHER, OUTPUTS, TensorError, TensorLayout, Weight
from seesay.checkpoint.quantization import Quantization
from seesay.device.linear.linear_method import Product, Sizes, pad_matrix
from seesay.device.linear.matmul import make_product
from seesay.device.linear.packed_weight import cut_outputs

logger = logging.getLogger("seesay")

_LARGEST = 448.0
"""The largest number of one byte, that of FP8."""


def list_layouts(quantization: Quantization, stored_dtype: str, dtype: torch.dtype) -> dict[str, TensorLayout]:
    """Return the layouts of 'weight', 'scale' and, where there is one, 'input_scale'."""
    block = quantization.block_size
    channel = ((OUTPUTS, 1), (NEITHER, 1)) if quantization.scale_has_inputs else ((OUTPUTS, 1),)
    axes = {"tensor": (), "channel": channel, "block": ((OUTPUTS, block[0]), (INPUTS, block[1]))}
    layouts = {
        "weight": TensorLayout(name="weight", axes=((OUTPUTS, 1), (INPUTS, 1)), dtypes=(stored_dtype,), dtype=dtype),
        "scale": TensorLayout(
            name=quantization.scale_name,
            axes=axes[quantization.strategy],
            dtypes=FLOATS,
            dtype=torch.float32,
            is_reordered_later=quantization.strategy == "block",
        ),
    }
    if quantization.has_input_scale:
        layouts["input_scale"] = TensorLayout(name="input_scale", axes=(), dtype=torch.float32)
    return layouts


def check_numbers(weights: Mapping[str, Weight], dtype: torch.dtype) -> None:
    """Raise `TensorError` for a tensor with scales that are not positive, or with which the largest number
    would not be finite in `dtype`, that of the model, or a tensor with NaN among its numbers."""
    for name, weight in weights.items():
        for part, place in weight.places():
            if name != "weight":
                largest = (place * _LARGEST).to(dtype if name == "scale" else place.dtype)
                if not (largest.isfinite() & (place > 0)).all():
                    raise TensorError(part.tensor, "has scales that are not positive numbers, or too large")
            elif place.is_floating_point() and not (place.view(torch.uint8) & 0x7F).ne(0x7F).all():  # NaN of e4m3
                raise TensorError(part.tensor, "has numbers that are NaN")


def check_finite(weight: Weight) -> None:
    """Raise `TensorError` for a tensor of plain numbers which are not all finite."""
    for part, place in weight.places():
        if not place.isfinite().all():
            raise TensorError(part.tensor, "has numbers that are not finite")


def scale_per_output(weight: Weight, scale: Weight) -> torch.Tensor:
    """Return scales [out] of scales per output or per stored tensor."""
    per_output = scale.data.flatten()
    if scale.parts[0].axes:
        return per_output
    counts = [len(place) for _, place in weight.places()]
    repeats = torch.tensor(counts, device=per_output.device)
    return per_output.repeat_interleave(repeats, output_size=sum(counts))


def multiply_out(numbers: torch.Tensor, scale: torch.Tensor, group_size: int, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers [out, in] times scale [out, groups of `group_size` inputs]. Some outputs are computed at a time,
    so that temporary memory does not grow with the matrix."""
    exact = torch.empty(numbers.shape, dtype=dtype, device=numbers.device)
    groups = torch.arange(numbers.shape[1], device=numbers.device) // group_size
    for start, stop in cut_outputs(*numbers.shape):
        exact[start:stop] = numbers[start:stop].float() * scale[start:stop].index_select(1, groups)
    return exact


def make_plain_product(
    numbers: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, sizes: Sizes, dtype: torch.dtype
) -> Product:
    """Return the product with numbers [out, in] times scale [out], as plain weights."""
    return make_product(pad_matrix(multiply_out(numbers, scale[:, None], numbers.shape[1], dtype), sizes), bias)


def why_not_aligned(shape: torch.Size, sizes: Sizes, alignment: int, kind: str) -> str | None:
    """Return why products of rows and a weight of this shape need sizes that the layer does not have; None if it has
    them."""
    if any(n % alignment for n in shape) or sizes.output_multiple > 1 or sizes.input_multiple > 1:
        return f"{kind} products need sizes that are multiples of {alignment}, got {tuple(shape)}"
    return None


@cache
def warn_multiplied_out(reason: str) -> None:
    """Warn once for each reason."""
    logger.warning("%s: such layers take the memory and time of unquantized ones", reason)


@cache
def note_static_scales() -> None:
    """Log once that scales of activations which a checkpoint has are not used."""
    logger.info(
        "the checkpoint's scales of activations (input_scale) are checked and not used: every token gets a scale of "
        "its own while it is computed, which is finer"
    )

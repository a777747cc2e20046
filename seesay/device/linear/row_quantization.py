"""Rows of activations in numbers of one byte, FP8 (e4m3) or int8, with scales of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

from seesay.device.backends import has_kernels

_SMALLEST = 1e-12
"""The largest number of a row counts as at least this much, so that rows of zeros have a scale."""


class QuantizedRows(NamedTuple):
    """`numbers` [N, K] times `scale` float32 [N, 1], or [N, number of groups], each for a group of inputs."""

    numbers: torch.Tensor
    scale: torch.Tensor


@dataclass(frozen=True, slots=True)
class RowFormat:
    """How a product takes its rows: the type of their numbers, the number that the largest of a group becomes, and the
    number of inputs in a group (the last may have fewer); None for one group."""

    dtype: torch.dtype
    largest: float
    group_size: int | None = None


FP8_ROWS = RowFormat(torch.float8_e4m3fn, 448.0)
INT8_ROWS = RowFormat(torch.int8, 127.0)


def quantize_rows(x: torch.Tensor, form: RowFormat) -> QuantizedRows:
    """Return x [N, K] in this format. In a group with something that is not finite, the scale or a number is not
    finite, too."""
    size = form.group_size or max(1, x.shape[1])
    padding = -x.shape[1] % size
    groups = F.pad(x, (0, padding)).view(len(x), (x.shape[1] + padding) // size, size)
    scale = groups.abs().amax(dim=2, keepdim=True).float().clamp(min=_SMALLEST) / form.largest
    quotients = groups.float() / scale
    if not form.dtype.is_floating_point:
        quotients = quotients.nan_to_num().round()  # the scale tells of what is not finite
    numbers = quotients.clamp(-form.largest, form.largest).to(form.dtype)
    return QuantizedRows(numbers.flatten(1)[:, : x.shape[1]].contiguous(), scale.squeeze(2))


def pick_quantizer(device: torch.device, form: RowFormat) -> Callable[[torch.Tensor], QuantizedRows]:
    """Return `quantize_rows` in this format, or the kernel that does the same on this device."""
    if not has_kernels(device):
        return lambda x: quantize_rows(x, form)
    from seesay.kernels import quantize

    return lambda x: QuantizedRows(*quantize.quantize_rows(x, form.dtype, form.largest, form.group_size))

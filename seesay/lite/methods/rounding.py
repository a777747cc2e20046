"""Rounding of float32 matrices [out, in] to few bits, and packing as AWQ and GPTQ pack them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seesay.device.linear.fp8 import FP8, MAX_FP8

_WORD_BITS = 32
_AWQ_FIELDS = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output, of each eight, that AWQ has in fields of 4 bits from the lowest."""
_LEAST_SCALE = 2.0**-24
"""The smallest number above zero in float16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Integers 0 … levels, of which `zero` stands for 0: weight = (number - zero) · scale. scale and zero are float32
    of one shape."""

    scale: Tensor
    zero: Tensor
    levels: int

    def round(self, weight: Tensor) -> Tensor:
        """Return the numbers nearest to the weight, float32."""
        return (weight / self.scale + self.zero).round().clamp(0, self.levels)

    def restore(self, numbers: Tensor) -> Tensor:
        return (numbers - self.zero) * self.scale


def make_grid(low: Tensor, high: Tensor, *, bits: int, is_symmetric: bool, least_zero: int = 0) -> Grid:
    """Return the grid for weights between `low` and `high`, with scales that float16 has. Zero is always on it.

    Symmetric: zero is the middle number. Otherwise it is `least_zero` or more.
    """
    levels = (1 << bits) - 1
    low, high = low.clamp(max=0), high.clamp(min=0)
    if is_symmetric:
        middle = (levels + 1) // 2
        scale = _as_float16(torch.maximum(high, -low) / (levels - middle))
        return Grid(scale=scale, zero=torch.full_like(scale, middle), levels=levels)
    scale = _as_float16((high - low) / levels)
    return Grid(scale=scale, zero=(-low / scale).round().clamp(least_zero, levels), levels=levels)


def group(weight: Tensor, group_size: int) -> Tensor:
    """Return weight [out, in] as [out, in / group_size, group_size]."""
    return weight.unflatten(1, (-1, group_size))  # type: ignore[no-untyped-call,no-any-return]


def grid_of_groups(grouped: Tensor, *, bits: int, is_symmetric: bool) -> Grid:
    """Return the grid [out, groups, 1] of the smallest and largest weight of each group."""
    low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
    return make_grid(low, high, bits=bits, is_symmetric=is_symmetric)


def round_groups(weight: Tensor, *, bits: int, group_size: int, is_symmetric: bool) -> Tensor:
    """Return the weight with every group rounded to its grid."""
    grouped = group(weight, group_size)
    grid = grid_of_groups(grouped, bits=bits, is_symmetric=is_symmetric)
    return grid.restore(grid.round(grouped)).flatten(1)


def round_rows_fp8(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return FP8 numbers, and a scale [out, 1] for each output in `dtype`."""
    scale = (weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / MAX_FP8).to(dtype)
    return (weight / scale.float()).clamp(-MAX_FP8, MAX_FP8).to(FP8), scale


def round_rows_int8(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return int8 numbers from -127 to 127, and a scale [out, 1] for each output in `dtype`."""
    scale = (weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127).to(dtype)
    return (weight / scale.float()).round().clamp(-127, 127).to(torch.int8), scale


def pack_awq(numbers: Tensor) -> Tensor:
    """Pack 4-bit numbers [N, K] along the last axis, as AWQ orders them: int32 [N, K / 8]."""
    fields = numbers.to(torch.int64).unflatten(-1, (-1, len(_AWQ_FIELDS)))  # type: ignore[no-untyped-call]
    return _join(fields[..., list(_AWQ_FIELDS)], 4)


def pack(numbers: Tensor, bits: int) -> Tensor:
    """Pack numbers [N, K] along the last axis, the first in the lowest bits: int32 [N, K · bits / 32]."""
    fields = numbers.to(torch.int64).unflatten(-1, (-1, _WORD_BITS // bits))  # type: ignore[no-untyped-call]
    return _join(fields, bits)


def unpack_awq(words: Tensor) -> Tensor:
    """Return the 4-bit numbers [N, 8 · K] that `pack_awq` packs into words int32 [N, K]."""
    fields = unpack(words, 4).unflatten(-1, (-1, len(_AWQ_FIELDS)))  # type: ignore[no-untyped-call]
    return torch.empty_like(fields).index_copy_(-1, torch.tensor(_AWQ_FIELDS), fields).flatten(-2)


def unpack(words: Tensor, bits: int) -> Tensor:
    """Return the numbers int64 [N, 32 / bits · K] that `pack` packs into words int32 [N, K]."""
    shifts = torch.arange(0, _WORD_BITS, bits)
    return ((words.long()[..., None] >> shifts) & ((1 << bits) - 1)).flatten(-2)


def _join(fields: Tensor, bits: int) -> Tensor:
    shifts = torch.arange(fields.shape[-1], device=fields.device) * bits
    words = (fields << shifts).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def _as_float16(scale: Tensor) -> Tensor:
    return scale.half().float().clamp(min=_LEAST_SCALE)

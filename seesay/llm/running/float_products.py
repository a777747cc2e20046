"""Products of float64 with whole numbers, in int64 alone: the same bits on devices that have no float64."""

from __future__ import annotations

from typing import NamedTuple

import torch

_DIGITS = 53
"""Bits of float64's significand."""
_HALF = 54
"""Bits of the lower one of two int64 that have a product."""


class Scaled(NamedTuple):
    """Numbers significand · 2 ** exponent, of which both are int64 and the significand is below 2 ** 53."""

    significand: torch.Tensor
    exponent: torch.Tensor | int


def split_floats(bits: torch.Tensor) -> Scaled:
    """Return the numbers, 0 or more, that have the `bits` of float64."""
    exponent = bits >> (_DIGITS - 1)
    is_normal = exponent > 0
    significand = (bits & ((1 << _DIGITS - 1) - 1)) + (is_normal.long() << (_DIGITS - 1))
    return Scaled(significand, exponent.clamp(min=1) - (1023 + _DIGITS - 1))


def multiply(factor: Scaled, whole: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return factor · float64(whole), rounded as float64 is, as whole numbers: rounded down, and rounded up. The factor
    is at most 1."""
    shown, shift = _round(whole >> _HALF, whole & ((1 << _HALF) - 1))
    product, more = _round(*_multiply_wide(factor.significand, shown))
    exponent = factor.exponent + shift + more
    left, right = exponent.clamp(min=0), exponent.neg().clamp(min=0, max=63)
    down = (product << left) >> right
    return down, down + ((down << right) < (product << left))


def _multiply_wide(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the product of numbers up to 2 ** 53, as high · 2 ** 54 + low."""
    half = _HALF // 2
    mask = (1 << half) - 1
    one_high, one_low, other_high, other_low = one >> half, one & mask, other >> half, other & mask
    middle = one_high * other_low + one_low * other_high
    low = one_low * other_low + ((middle & mask) << half)
    return one_high * other_high + (middle >> half) + (low >> _HALF), low & ((1 << _HALF) - 1)


def _round(high: torch.Tensor, low: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return high · 2 ** 54 + low, below 2 ** 107, as a significand and the power of two that it is to be multiplied
    with; the nearest, and of two the even one."""
    length = torch.where(high > 0, _HALF + _count_bits(high), _count_bits(low))
    shift = (length - _DIGITS).clamp_(min=0)
    kept = (high << (_HALF - shift)) + (low >> shift)
    rest, half = low & ((1 << shift) - 1), (1 << shift) >> 1
    is_up = (rest > half) | ((rest == half) & (kept & 1 > 0))
    return kept + (is_up & (shift > 0)), shift


def _count_bits(numbers: torch.Tensor) -> torch.Tensor:
    """Return how many bits numbers below 2 ** 54 have. The second bit is taken off, so that float32, whose exponent
    tells, does not round up to one bit more."""
    exponents = (numbers & ~(numbers >> 1)).float().view(torch.int32) >> 23
    return (exponents - 126).clamp_(min=0).long()

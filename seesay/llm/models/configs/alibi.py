"""The slopes of ALiBi (Press et al. 2022, section 3) for any number of heads."""

from __future__ import annotations

from seesay.llm.models.spec import AlibiSpec


def make_alibi(num_heads: int, *, is_rounded: bool = False) -> AlibiSpec:
    """Return the slopes 2^(-8 i / n), i = 1 … n, where the number of heads n is a power of two. Else heads have those
    of the next smaller power, and then every second one of its double, as BLOOM, Falcon and Baichuan have them."""
    power = 1 << (num_heads.bit_length() - 1)
    slopes = _series(power) + _series(2 * power)[::2][: num_heads - power]
    return AlibiSpec(slopes=tuple(slopes), is_rounded=is_rounded)


def make_mpt_alibi(num_heads: int, largest: float) -> AlibiSpec:
    """Return the slopes 2^(-largest · i / n) of MPT (the class in Transformers takes 8 for any `largest`). Where the
    number of heads is not a power of two, n is the next larger one, and heads have every second slope first, from the
    second one on, and then those between."""
    power = 1 << (num_heads - 1).bit_length()
    slopes = _series(power, largest)
    if power != num_heads:
        slopes = (slopes[1::2] + slopes[::2])[:num_heads]
    return AlibiSpec(slopes=tuple(slopes))


def _series(count: int, largest: float = 8.0) -> list[float]:
    return [2.0 ** (-largest * (i + 1) / count) for i in range(count)]

"""Sizes of what a program holds: powers of two."""

from __future__ import annotations

from functools import cache

import triton


@cache
def power_of_2_from(size: int) -> int:
    """The next power of two. Triton's function, without the time it takes: at small batches the host is what is waited
    for."""
    return int(triton.next_power_of_2(size))

"""Tilings of `experts`, chosen by measurement: `python benchmarks/experts.py --sweep` measures them."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from seesay.kernels.sizes import power_of_2_from

MAX_ALONE = 2
"""Largest number of tokens whose assignments are computed one by one: few of them share an expert."""


class GroupedTiling(NamedTuple):
    """A program computes `outputs` outputs of `rows` assignments of one expert, with `span` elements of each row of
    weights at a time. num_stages: spans that are loaded at once. rows_first: see `expert_kernels.grouped_kernel`."""

    rows: int
    outputs: int
    span: int
    num_warps: int
    num_stages: int
    rows_first: bool = False


class RowTiling(NamedTuple):
    """A program computes `outputs` outputs of one assignment, or of one token from all of its assignments, with `span`
    elements of each row of weights at a time."""

    outputs: int
    span: int
    num_warps: int


@cache
def tile_grouped(
    num_assignments: int, num_experts: int, size: int, is_gated: bool, num_bytes: int, has_large_memory: bool
) -> GroupedTiling:
    """Return the tiling for so many assignments. num_bytes: of an element of the weights. Those of one byte are widened
    in registers, from where tensor cores take the first axis alone, which then is that of outputs."""
    mean = num_assignments / num_experts
    if num_bytes == 1 and mean > 6:
        if mean <= 24:
            tiling = GroupedTiling(16, 32, 128, 2, 4)
        else:
            tiling = GroupedTiling(64 if is_gated else 128, 64, 128, 4, 3 if has_large_memory else 2)
    elif mean > 24:
        num_stages = 3 if has_large_memory else 2
        if mean > 96:
            tiling = GroupedTiling(128, 128, 64, 8, num_stages, rows_first=True)
        else:
            tiling = GroupedTiling(64, 64 if is_gated else 128, 64, 4, num_stages, rows_first=True)
    elif mean > 12:
        tiling = GroupedTiling(32, 64, 64, 4, 5 if has_large_memory else 3)
    elif mean > 6:
        tiling = GroupedTiling(16, 64, 128, 4, 3 if has_large_memory else 2)
    elif is_gated:
        tiling = GroupedTiling(8, 32, 256, 2, 3 if has_large_memory else 2)
    elif mean > 1:
        tiling = GroupedTiling(8, 64, 128, 4, 4 if has_large_memory else 3)
    else:
        tiling = GroupedTiling(8, 16, 256, 1, 4 if has_large_memory else 3)
    if num_bytes == 4:
        tiling = tiling._replace(span=tiling.span // 2, outputs=min(64, tiling.outputs))
    return tiling._replace(span=max(16, min(tiling.span, power_of_2_from(size))))


@cache
def tile_row(size: int, is_gated: bool, num_chosen: int) -> RowTiling:
    """Return the tiling for a few tokens whose assignments are computed one by one."""
    if is_gated:
        tiling = RowTiling(outputs=2, span=1024, num_warps=4)
    else:
        tiling = RowTiling(outputs=1, span=max(16, 2048 // power_of_2_from(num_chosen)), num_warps=4)
    return tiling._replace(span=max(16, min(tiling.span, power_of_2_from(size))))

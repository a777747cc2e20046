"""A Triton kernel that notes which tokens have numbers that are not finite, in one pass."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from seesay.kernels.dependent_launch import wait
from seesay.kernels.gpu import has_dependent_launch, nvidia_options

_BLOCK = 2048
"""Numbers that a program looks at."""


@triton.jit(do_not_specialize=["size"])
def note_faults_kernel(x_ptr, faults_ptr, size, stride, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr):
    wait(IS_DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + token * stride + columns, mask=columns < size, other=0.0).to(tl.float32)
    is_bad = tl.max(tl.where(tl.abs(x) < float("inf"), 0, 1), axis=0) > 0
    tl.store(faults_ptr + token, float("nan"), mask=is_bad)


def note_faults(x: torch.Tensor, faults: torch.Tensor) -> None:
    """Set faults [T] to NaN where a number of x [T, size] is not finite."""
    assert x.stride(1) == 1 and faults.is_contiguous()
    if not len(x):
        return
    is_dependent = has_dependent_launch(x.get_device())
    note_faults_kernel[(len(x), triton.cdiv(x.shape[1], _BLOCK))](
        x,
        faults,
        x.shape[1],
        x.stride(0),
        BLOCK=_BLOCK,
        IS_DEPENDENT=is_dependent,
        num_warps=4,
        **nvidia_options(launch_pdl=is_dependent),
    )

"""Programmatic dependent launch: a kernel starts while the one before still runs (see `gpu.has_dependent_launch`)."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def wait(IS_DEPENDENT: tl.constexpr):
    """Wait for the kernel before. All programs do, so that none of the next kernel begins before that one has ended."""
    if IS_DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()

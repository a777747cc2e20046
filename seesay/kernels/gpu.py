"""What kernels ask about the GPU that they run on. GPUs are named by `torch.Tensor.get_device()`: -1 is the CPU."""

from __future__ import annotations

from functools import cache

import torch

LARGE_SHARED_BYTES = 160 * 1024
"""Shared memory of a block that data-centre GPUs have since Ampere, and others have not."""


@cache
def has_dependent_launch(index: int) -> bool:
    """Whether a kernel may begin while the one before it ends (programmatic dependent launch)."""
    return index >= 0 and torch.cuda.get_device_capability(index) >= (9, 0)


@cache
def has_large_shared_memory(index: int) -> bool:
    """Whether a block may take as much as data-centre GPUs have; for the interpreter, which takes anything, too."""
    return index < 0 or torch.cuda.get_device_properties(index).shared_memory_per_block_optin >= LARGE_SHARED_BYTES

"""What kernels ask about the GPU that they run on. GPUs are named by `torch.Tensor.get_device()`: -1 is the CPU."""

from __future__ import annotations

from functools import cache

import torch

LARGE_SHARED_BYTES = 160 * 1024
"""Shared memory of a multiprocessor that data-centre GPUs have since Ampere, and others have not."""


@cache
def has_dependent_launch(index: int) -> bool:
    """Whether a kernel may begin while the one before it ends (programmatic dependent launch)."""
    return index >= 0 and torch.cuda.get_device_capability(index) >= (9, 0)


@cache
def fitting_stages(index: int, num_stages: int) -> int:
    """`num_stages` of a software pipeline that are made for a large shared memory, or the 2 that fit into any."""
    if index < 0:
        return num_stages
    shared_bytes = torch.cuda.get_device_properties(index).shared_memory_per_block_optin
    return num_stages if shared_bytes >= LARGE_SHARED_BYTES else min(num_stages, 2)

"""Properties of the GPU that kernels depend on. GPUs are numbered like `torch.Tensor.get_device()`: -1 is the CPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

LARGE_SHARED_BYTES = 160 * 1024
"""Shared memory per block of data-center GPUs since Ampere. Other GPUs have less."""
_INTEL_SHARED_BYTES = 128 * 1024
"""Shared local memory of a work group on Xe GPUs."""


@cache
def is_nvidia() -> bool:
    """Return whether PyTorch's GPUs are NVIDIA's: not in a build for AMD's or Intel's."""
    return not (torch.version.hip or getattr(torch.version, "xpu", None))


@cache
def has_dependent_launch(index: int) -> bool:
    """Return whether a kernel may start before the previous one has ended (programmatic dependent launch)."""
    return index >= 0 and is_nvidia() and torch.cuda.get_device_capability(index) >= (9, 0)


def nvidia_options(**options: Any) -> dict[str, Any]:
    """Return options of a launch that Triton takes for NVIDIA's GPUs alone; none for others."""
    return options if is_nvidia() else {}


def has_ptx(index: int) -> bool:
    """Return whether kernels may contain PTX, the assembly of NVIDIA's GPUs."""
    return index >= 0 and is_nvidia()


@cache
def has_large_shared_memory(index: int) -> bool:
    """Return whether a block may use as much shared memory as on data-center GPUs. True for the interpreter."""
    return index < 0 or shared_bytes(index) >= LARGE_SHARED_BYTES


def shared_bytes(index: int) -> int:
    """Return the most shared memory that a block may use on a GPU of this machine. This takes no memory of it."""
    if getattr(torch.version, "xpu", None):
        return _INTEL_SHARED_BYTES
    properties = torch.cuda.get_device_properties(index)
    optional = getattr(properties, "shared_memory_per_block_optin", 0)  # AMD has no more than the plain limit
    return int(optional or properties.shared_memory_per_block)

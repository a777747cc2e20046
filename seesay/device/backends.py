"""The one choice between implementations: the Triton kernels of `seesay.kernels`, or torch's own operations."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def has_triton() -> bool:
    """Return whether Triton is installed."""
    return find_spec("triton") is not None


@cache
def has_kernels(device: torch.device) -> bool:
    """Return whether kernels run on `device`: on CUDA GPUs where Triton is installed. Otherwise torch computes.

    The meta device stands for such a GPU: see `seesay.kernels.absent_gpu`.
    """
    return device.type in ("cuda", "meta") and has_triton()

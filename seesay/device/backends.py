"""The one choice between implementations: the Triton kernels of `seesay.kernels`, or torch's own operations."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from seesay.device.registry import accelerator_of

if TYPE_CHECKING:
    import torch


def has_triton() -> bool:
    """Return whether Triton is installed."""
    return find_spec("triton") is not None


@cache
def has_kernels(device: torch.device) -> bool:
    """Return whether all kernels run on `device`: on NVIDIA's GPUs where Triton is installed, for which they are made.
    Otherwise torch computes.

    The meta device stands for such a GPU: see `seesay.kernels.absent_gpu`.
    """
    return accelerator_of(device).has_kernels and has_triton()


def can_try_kernels(device: torch.device) -> bool:
    """Return whether Triton is installed and compiles for `device`, which is not NVIDIA's: kernels in plain Triton
    may run, if they compute there what torch does."""
    kind = accelerator_of(device)
    return kind.has_triton and not kind.has_kernels and has_triton()


def has_graphs(device: torch.device) -> bool:
    """Return whether work of `device` is captured in graphs. The meta device pretends it."""
    return accelerator_of(device).has_graphs


def has_causal_bias(device: torch.device) -> bool:
    """Return whether torch's attention has a kernel for the last tokens of a causal text, which needs no mask."""
    return accelerator_of(device).has_causal_bias


def has_wide_products(device: torch.device) -> bool:
    """Return whether `torch.mm` takes an `out_dtype`."""
    return accelerator_of(device).has_wide_products


def has_float64(device: torch.device) -> bool:
    """Return whether `device` has numbers of 64 bits."""
    return accelerator_of(device).has_float64


def make_vendor_ops(device: torch.device) -> Any:
    """Return the operations that the device's vendor brings, an object of the protocol `seesay.llm.ops.Ops`; None where
    it brings none."""
    return accelerator_of(device).make_ops()

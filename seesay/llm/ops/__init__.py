"""The decoder's operations, in as many implementations as there are; one is chosen per device:
that of the device's vendor, else Triton's, else torch's."""

from __future__ import annotations

import torch

from seesay.device.backends import can_try_kernels, has_kernels, make_vendor_ops
from seesay.device.determinism import is_deterministic
from seesay.errors import ConfigError
from seesay.llm.ops.interface import Activation, DecodeRows, Ops, RowLayout
from seesay.llm.ops.low_rank import SlotFactors, SlotRows
from seesay.llm.ops.torch_ops import TorchOps

__all__ = ["Activation", "DecodeRows", "Ops", "RowLayout", "SlotFactors", "SlotRows", "pick_ops"]


def pick_ops(device: torch.device) -> Ops:
    """Return a new object of the implementation for `device`: one decoder's, since it may keep what it saw of its
    cache."""
    if is_deterministic():
        return _pick_deterministic_ops(device)
    ops: Ops | None = make_vendor_ops(device)
    if ops is not None:
        return ops
    if has_kernels(device):
        from seesay.llm.ops.triton_ops import TritonOps

        return TritonOps()
    if can_try_kernels(device):
        from seesay.llm.ops.checked_ops import make_checked_ops

        return make_checked_ops(device)
    return TorchOps()


def _pick_deterministic_ops(device: torch.device) -> Ops:
    if has_kernels(device):
        from seesay.llm.ops.deterministic_triton_ops import DeterministicTritonOps

        return DeterministicTritonOps()
    if device.type != "cpu":
        raise ConfigError(f"deterministic: it is for CPUs and for NVIDIA's GPUs with Triton, got {device}")
    from seesay.llm.ops.deterministic_ops import DeterministicOps

    return DeterministicOps()

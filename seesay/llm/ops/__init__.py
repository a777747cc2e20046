"""The decoder's operations, in as many implementations as there are; one is chosen per process and device type."""

from __future__ import annotations

from functools import cache

import torch

from seesay.llm.ops.interface import Ops, RowLayout
from seesay.llm.ops.torch_ops import TorchOps

__all__ = ["Ops", "RowLayout", "pick_ops"]


@cache
def _make_ops(device_type: str) -> Ops:
    assert device_type in ("cpu", "cuda")
    return TorchOps()


def pick_ops(device: torch.device) -> Ops:
    """The implementation for `device`: the same object at every call."""
    return _make_ops(device.type)

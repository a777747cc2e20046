"""The decoder's operations, in as many implementations as there are; one is chosen per device type."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from seesay.llm.ops.interface import Activation, DecodeRows, Ops, RowLayout
from seesay.llm.ops.torch_ops import TorchOps

__all__ = ["Activation", "DecodeRows", "Ops", "RowLayout", "pick_ops"]


def pick_ops(device: torch.device) -> Ops:
    """A new object of the implementation for `device`, which is Triton's on CUDA where it is installed: one decoder's,
    since it may keep what it saw of its cache."""
    assert device.type in ("cpu", "cuda")
    if device.type == "cuda" and find_spec("triton") is not None:
        from seesay.llm.ops.triton_ops import TritonOps

        return TritonOps()
    return TorchOps()

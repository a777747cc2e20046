"""Activations with operations of torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from seesay.llm.ops.interface import Activation


def act_and_mul(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """See `Ops.act_and_mul`."""
    gate, up = x.chunk(2, dim=-1)
    if activation == "silu":
        return F.silu(gate).mul_(up)
    if activation == "clamped_silu":
        gate = gate.clamp(max=7.0)
        return (gate * 1.702).sigmoid_().mul_(gate).mul_(up.clamp(-7.0, 7.0).add_(1.0))
    return F.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none").mul_(up)


def square_relu(x: torch.Tensor) -> torch.Tensor:
    """Return the square of what is more than 0 in x, and 0 elsewhere."""
    return F.relu(x).square_()

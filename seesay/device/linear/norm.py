"""RMS norm with the fastest kernels of the device."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x / sqrt(mean(x²) + eps) · weight over the last axis, computed in float32, in the type of x. No gradients.

    On the CPU `F.rms_norm` makes six passes over the data; `torch.linalg.vector_norm` makes one.
    """
    if x.dtype != weight.dtype:
        return rms_norm(x.float(), weight.float(), eps).to(x.dtype)
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return F.rms_norm(x, weight.shape, weight, eps)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale = torch.addcmul(_scalar(eps), norm, norm, value=1 / x.shape[-1]).rsqrt_()
    return torch.mul(x, scale).mul_(weight)


@cache
def _scalar(value: float) -> torch.Tensor:
    return torch.tensor(value)

"""Latent rows of tokens: rotated, normed and written, in torch on any device. Nothing waits for the device."""

from __future__ import annotations

import math

import torch

from seesay.device.linear.norm import rms_norm
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.ops.kv_codec import write_tokens


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return x [T, H, R] rotated by cos and sin [T, 1, R], sin's first half being negated."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def write_latent(
    rows: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    norm: tuple[torch.Tensor, float],
    cache: LayerCache,
    slots: torch.Tensor,
    faults: torch.Tensor,
) -> None:
    """See `Ops.write_latent`."""
    size = cache.layout.turned_dim
    rows = torch.cat((rotate(rows[:, None, :size], cos, sin)[:, 0], rms_norm(rows[:, size:], *norm)), dim=1)
    params = write_tokens(cache, slots, rows[:, None, None])
    for numbers in (rows,) if params is None else (rows, params.flatten(1)):
        faults.masked_fill_(~numbers.float().sum(dim=1).isfinite(), math.nan)

"""Latent rows of tokens: rotated and written, in torch on any device. Nothing waits for the device."""

from __future__ import annotations

import math

import torch

from seesay.llm.memory.kv_layout import LayerCache


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return x [T, H, R] rotated by cos and sin [T, 1, R], sin's first half being negated."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def write_rows(rows: torch.Tensor, cache: LayerCache, slots: torch.Tensor, faults: torch.Tensor) -> None:
    """Write rows [T, D] to `slots` int64 [T] of the cache. Set faults [T] to NaN for those that are not finite."""
    cache.data.view(-1, rows.shape[1]).index_copy_(0, slots, rows)
    faults.masked_fill_(~rows.float().sum(dim=1).isfinite(), math.nan)

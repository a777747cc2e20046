"""Biases of attention scores from ALiBi's slopes (Press et al. 2022)."""

from __future__ import annotations

import torch


def find_bias(slopes: torch.Tensor, keys: torch.Tensor, places: torch.Tensor, scale: float) -> torch.Tensor:
    """Return what slopes [H] (or [H, 1]) add to scaled scores of keys at places `keys` int64 [L], seen from `places`
    int64 that broadcast: float32 [..., L]. See `Ops.attend`."""
    slopes = slopes[..., None]
    if slopes.dtype == torch.bfloat16:
        return ((slopes * keys).float() - slopes.float() * places) * scale
    return slopes * (keys - places)

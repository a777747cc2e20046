"""Whether torch has the lanczos filter for uint8 pixels."""

from __future__ import annotations

from functools import cache


@cache
def has_lanczos() -> bool:
    """Return whether this torch has the filter, and thereby torchvision. Otherwise Pillow's is used, which differs by
    rounding."""
    import torch
    from torch.nn.functional import interpolate

    try:
        pixels = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
        interpolate(pixels, size=(2, 2), mode="lanczos", align_corners=False, antialias=True)
    except (NotImplementedError, RuntimeError, ValueError):
        return False
    return True

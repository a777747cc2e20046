"""The vision tower: patches of a square are mixed across the square, and projected into the decoder's space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seesay.checkpoint import Checkpoint
from seesay.device.linear.linear import Linear
from seesay.encoders.towers.layers import PixelNormalizer
from seesay.encoders.towers.tiles import TileEncoder
from seesay.encoders.towers.weights import load_tower


class Mixer(nn.Module):
    """Adds to each patch what all patches say together, and what it says itself (arXiv 2105.01601)."""

    def __init__(self, num_patches: int, size: int) -> None:
        super().__init__()
        self.across = Linear(num_patches, num_patches)
        self.norm = nn.LayerNorm(size)
        self.along = Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.gelu(self.across(self.norm(x).transpose(1, 2))).transpose(1, 2)
        return x + F.gelu(self.along(self.norm(x)))


class Tower(nn.Module):
    """Patch vectors [N, patches, 3 · patch_size²] of N squares to rows [N, patches, out_size]."""

    def __init__(self, image_size: int, patch_size: int, size: int, num_layers: int, *, out_size: int) -> None:
        super().__init__()
        num_patches = (image_size // patch_size) ** 2
        self.embed = Linear(3 * patch_size**2, size)
        self.layers = nn.ModuleList([Mixer(num_patches, size) for _ in range(num_layers)])
        self.project = Linear(size, out_size)

    def forward(self, patches: Tensor) -> Tensor:
        hidden = self.embed(patches)
        for layer in self.layers:
            hidden = layer(hidden)
        rows: Tensor = self.project(hidden)
        return rows


def load_encoder(
    checkpoint: Checkpoint,
    name_of: Callable[[str], str | None],
    *,
    sizes: tuple[int, int, int, int],
    out_size: int,
    statistics: Mapping[str, Any],
    device: torch.device,
    dtype: torch.dtype,
) -> TileEncoder:
    """Return the tower with its weights. `sizes` are the first arguments of `Tower`. Raises `CheckpointError` naming a
    tensor that is missing, unknown, or of another shape."""
    with torch.device("meta"):
        tower = Tower(*sizes, out_size=out_size)
    weights = load_tower(tower, checkpoint, name_of, device=device, dtype=dtype)
    image_size, patch_size = sizes[:2]
    return TileEncoder(
        tower,
        PixelNormalizer(**statistics),
        tile_size=(image_size, image_size),
        patch_size=(patch_size, patch_size),
        hidden_size=out_size,
        weights=weights,
    )

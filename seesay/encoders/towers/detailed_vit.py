"""A tower whose rows look for details in a larger picture (Mini-Gemini, arXiv 2403.18814, section 3.2: patch info
mining), with a projector."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seesay.device.linear.linear import Linear
from seesay.encoders.towers.convnext import STEM_SIDE, ConvNeXt, ConvNeXtConfig, scale
from seesay.encoders.towers.layers import cut_patches
from seesay.encoders.towers.vit import Vit, VitConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DetailConfig:
    """side: of the larger picture in pixels. The tower sees it scaled down, in tiles² tiles of its own size, and with
    `has_whole` as a whole before these. row_scale: factor of the rows, which is rounded to their type."""

    tower: VitConfig
    details: ConvNeXtConfig
    side: int
    tiles: int = 1
    has_whole: bool = False
    out_hidden_size: int
    row_scale: float = 1.0


class _Mining(nn.Module):
    """Each row of the tower attends to the details of its own part of the picture, which are added to it."""

    def __init__(self, size: int, detail_size: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (
            nn.ModuleList((nn.LayerNorm(own), Linear(own, size))) for own in (size, detail_size, detail_size)
        )

    def forward(self, rows: Tensor, details: Tensor) -> Tensor:
        """rows [N, g², size], details [N, C, H, W] of the same picture."""
        count, _, height, width = details.shape
        grid = int(rows.shape[1] ** 0.5)
        cut = details.view(count, -1, grid, height // grid, grid, width // grid).permute(0, 2, 4, 3, 5, 1)
        parts = cut.reshape(count * grid**2, -1, details.shape[1])
        query, key, value = (
            linear(norm(x)) for (norm, linear), x in ((self.query, rows), (self.key, parts), (self.value, parts))
        )
        found = F.scaled_dot_product_attention(query.reshape(count * grid**2, 1, -1), key, value)
        return rows + found.view(rows.shape)


class _Projector(nn.Module):
    def __init__(self, size: int, out_hidden_size: int) -> None:
        super().__init__()
        self.linear_1, self.linear_2 = Linear(size, out_hidden_size), Linear(out_hidden_size, out_hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(F.gelu(self.linear_1(x)))


class DetailedVit(nn.Module):
    """Patch vectors [N, (side / 4)², 3·4·4] of N normalized pictures to rows [N, R, out_hidden_size]: those of the
    whole picture if there is one, then those of its tiles, line by line."""

    def __init__(self, config: DetailConfig) -> None:
        super().__init__()
        self.config = config
        size = config.tower.hidden_size
        self.tower, self.details = Vit(config.tower), ConvNeXt(config.details)
        self.mining = _Mining(size, sum(config.details.sizes))
        self.projector = _Projector(size, config.out_hidden_size)

    def forward(self, patches: Tensor) -> Tensor:
        config, count = self.config, len(patches)
        pixels = _join(patches, config.side)
        details = self.details(pixels)
        (height, width), tiles = config.tower.image_size, config.tiles
        small = scale(pixels, (height * tiles, width * tiles))
        rows = self._mine(_cut(small, tiles), _cut(details, tiles)).view(count, -1, config.tower.hidden_size)
        if config.has_whole:
            size = details.shape[-2] // tiles, details.shape[-1] // tiles
            whole = self._mine(scale(small, (height, width)), scale(details, size))
            rows = torch.cat((whole, rows), dim=1)
        result: Tensor = self.projector(rows)
        if config.row_scale != 1.0:
            result = result * torch.tensor(config.row_scale, dtype=result.dtype).item()
        return result

    def _mine(self, pixels: Tensor, details: Tensor) -> Tensor:
        patches = cut_patches(pixels.permute(0, 2, 3, 1).contiguous(), self.config.tower.patch_size)
        mined: Tensor = self.mining(self.tower(patches)[:, 1:], details)
        return mined


def _join(patches: Tensor, side: int) -> Tensor:
    """Return pictures [N, 3, side, side] of their patch vectors."""
    grid = side // STEM_SIDE
    axes = patches.view(len(patches), grid, grid, 3, STEM_SIDE, STEM_SIDE).permute(0, 3, 1, 4, 2, 5)
    return axes.reshape(len(patches), 3, side, side)


def _cut(x: Tensor, tiles: int) -> Tensor:
    """Return the tiles [N · tiles², C, h, w] of [N, C, H, W], line by line."""
    count, channels, height, width = x.shape
    axes = x.view(count, channels, tiles, height // tiles, tiles, width // tiles).permute(0, 2, 4, 1, 3, 5)
    return axes.reshape(-1, channels, height // tiles, width // tiles)

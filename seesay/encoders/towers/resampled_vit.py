"""Qwen-VL's tower (arXiv 2308.12966, section 2.1): a ViT for pictures of one size, and a resampler whose queries lie on
a square over the picture, as its patches do."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seesay.device.linear.layer_loading import LoadedLayers
from seesay.encoders.towers.fractional_positions import stretch_positions
from seesay.encoders.towers.layers import PixelNormalizer, SegmentGroup
from seesay.encoders.towers.resampler import Resampler, ResamplerConfig
from seesay.encoders.towers.tiles import TileEncoder
from seesay.encoders.towers.vit import Vit


class ResampledVit(nn.Module):
    """Patch vectors [N, patches, 3·p·p] to rows [N, num_queries, out_hidden_size].

    `pos_embed` [num_queries, out_hidden_size] are the positions of the queries; those of patches are scaled from them.
    """

    def __init__(self, config: ResamplerConfig) -> None:
        super().__init__()
        self.config = config
        self.tower = Vit(config.tower)
        self.resampler = Resampler(config)
        self.pos_embed = nn.Parameter(torch.empty(config.num_queries, config.out_hidden_size))

    def forward(self, patches: Tensor) -> Tensor:
        hidden = self.tower(patches)
        count, length, _ = hidden.shape
        positions = stretch_positions(self.pos_embed, self.config.tower.grid).repeat(count, 1)
        segments = (SegmentGroup(count, length, slice(0, count * length)),)
        rows: Tensor = self.resampler(hidden.flatten(0, 1), positions, segments, self.pos_embed)
        return rows


def make_encoder(model: ResampledVit, normalizer: PixelNormalizer, weights: LoadedLayers | None = None) -> TileEncoder:
    """Return the tower as an encoder. Features: those of `TileEncoder`, with tiles of `image_size`."""
    tower = model.config.tower
    return TileEncoder(
        model,
        normalizer,
        tile_size=tower.image_size,
        patch_size=tower.patch_size,
        hidden_size=model.config.out_hidden_size,
        weights=weights,
    )

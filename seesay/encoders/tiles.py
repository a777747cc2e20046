"""An encoder for towers that take pictures, or tiles of pictures, of one size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seesay.device import upload
from seesay.encoders.graphs import GraphedTower
from seesay.encoders.layers import PixelNormalizer, cut_patches


class TileEncoder:
    """`model` turns patch vectors [N, patches, 3·ph·pw] of N tiles into rows [N, R, hidden_size], in its parameters'
    dtype and on their device. Features: `pixels` uint8 [tiles, height, width, 3]; `patch_size` is (ph, pw)."""

    def __init__(
        self, model: nn.Module, normalizer: PixelNormalizer, *, patch_size: tuple[int, int], hidden_size: int
    ) -> None:
        self.model = model
        self.hidden_size = hidden_size
        parameter = next(model.parameters())
        self.dtype, self.device = parameter.dtype, parameter.device
        self._graphed = GraphedTower(self._plan)
        self._normalizer = normalizer
        self._patch_size = patch_size

    def load_pixels(self, *features: Mapping[str, Any]) -> Tensor:
        """The items' normalized tiles, one item after another: float32 [tiles, H, W, 3] on the tower's device."""
        pixels = upload([item["pixels"] for item in features], self.device)
        return self._normalizer(torch.cat(pixels), channel_dim=3)

    def _plan(self, _num_tiles: int) -> nn.Module:
        return self.model

    def disable_graphs(self) -> None:
        self._graphed.records_graphs = False

    @torch.inference_mode()
    def encode(self, features: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        """Rows [tiles · R, hidden_size] for every item, from one call of the tower."""
        patches = cut_patches(self.load_pixels(*features), self._patch_size)
        rows = self._graphed(patches, len(patches), self.dtype)
        return [part.flatten(0, 1) for part in torch.split(rows, [len(item["pixels"]) for item in features])]

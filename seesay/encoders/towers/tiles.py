"""The encoder of towers whose pictures, or tiles of pictures, all have one size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seesay.device.backends import has_kernels
from seesay.device.linear.layer_loading import LoadedLayers
from seesay.device.transfers import upload
from seesay.encoders.graphs import GraphedEncoder, GraphedTower, plan_alike
from seesay.encoders.towers.arrangement import LearnedRows, StackedRows, arrange_rows
from seesay.encoders.towers.layers import PixelNormalizer, cut_patches
from seesay.encoders.towers.pixels import PatchLoader
from seesay.values.frame_chain import CHANNELS, Size, Tiles, pack


class TileLoader:
    """Makes the input of a tower whose pictures have one size: normalized patch vectors, on `device` as `dtype`.

    Features: `num_tiles`; `pixels` uint8 or float32 [tiles, height, width, 3], of which the tower does not see what
    lies behind the last whole patch, or the frames and chains of `PatchLoader`. `joined` (rows, columns): the tiles are
    one picture, which comes before them as a tile of its own, scaled by torch's bicubic interpolation of normalized
    pixels.
    `boxes` int32 [tiles, 4]: top, left, bottom and right of the picture in each tile; what lies around it is 0 once
    pixels are normalized. All items of a call have them, or none has. `tile_size` is (height, width), `patch_size` (ph,
    pw).
    """

    def __init__(
        self,
        normalizer: PixelNormalizer,
        *,
        tile_size: tuple[int, int],
        patch_size: tuple[int, int],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._normalizer = normalizer
        self._device = device
        group = (tile_size[0] // patch_size[0], tile_size[1] // patch_size[1])
        self._patch_size, self._tile_size = patch_size, tile_size
        self._seen_size = (group[0] * patch_size[0], group[1] * patch_size[1])
        self._loader = PatchLoader(normalizer, device=device, dtype=dtype, patch_size=patch_size)

    def load_pixels(self, *features: Mapping[str, Any]) -> Tensor:
        """Return the items' normalized tiles, one item after another: float32 [tiles, H, W, 3] on the tower's
        device."""
        uploaded = self.load_levels(*features)
        pixels = self._normalizer(torch.cat(uploaded), channel_dim=3)
        if "boxes" in features[0]:
            pixels.masked_fill_(_find_padding(features, self._tile_size, self._device), 0)
        if not any("joined" in item for item in features):
            return pixels
        parts = []
        for item, tiles in zip(features, torch.split(pixels, [len(each) for each in uploaded]), strict=True):
            parts += [scale_whole(tiles, item["joined"]), tiles] if "joined" in item else [tiles]
        return torch.cat(parts)

    def load_patches(self, features: Sequence[Mapping[str, Any]]) -> Tensor:
        """Return the items' normalized patch vectors [tiles, patches, 3·ph·pw], one item after another."""
        if not has_kernels(self._device) or any("joined" in item or _has_floats(item) for item in features):
            return self.cut(self.load_pixels(*features))
        vectors = self._loader([item if "frames" in item else self._send_tiles(item) for item in features])
        patches = vectors.view(sum(map(_count_tiles, features)), -1, vectors.shape[1])
        if "boxes" in features[0]:
            padding = _find_padding(features, self._seen_size, self._device).expand(-1, -1, -1, CHANNELS)
            patches.masked_fill_(cut_patches(padding, self._patch_size), 0)
        return patches

    def load_levels(self, *features: Mapping[str, object]) -> list[Tensor]:
        """Return each item's tiles before they are normalized: [tiles, H, W, 3] on the tower's device."""
        return [self._upload_tiles(item) for item in features]

    def cut(self, pixels: Tensor) -> Tensor:
        """Return the patch vectors [tiles, patches, 3·ph·pw] of normalized tiles [tiles, H, W, 3]."""
        height, width = self._seen_size
        return cut_patches(pixels[:, :height, :width], self._patch_size)

    def _upload_tiles(self, item: Mapping[str, Any]) -> Tensor:
        """Return an item's tiles on the device: uint8 or float32 [tiles, height, width, 3]."""
        if "frames" in item:
            return self._loader.load_tiles(item, self._tile_size)
        [tiles] = upload([item["pixels"]], self._device)
        return tiles

    def _send_tiles(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return tiles as frames that keep their size."""
        return {"frames": item["pixels"], "chains": pack(((Tiles(self._tile_size),),))}


class TileEncoder(GraphedEncoder):
    """Encodes with `model`, which turns patch vectors [N, patches, 3·ph·pw] of N tiles into rows [N, R, hidden_size],
    in the dtype and on the device of its parameters.

    Features: those of `TileLoader` and, where rows are to be arranged, those of `arrange_rows`. `learned`: rows of the
    model that arrangements use. `weights` are those of the model, where a checkpoint has them.
    """

    weights: LoadedLayers

    def __init__(
        self,
        model: nn.Module,
        normalizer: PixelNormalizer,
        *,
        tile_size: tuple[int, int],
        patch_size: tuple[int, int],
        hidden_size: int,
        learned: StackedRows | None = None,
        weights: LoadedLayers | None = None,
    ) -> None:
        self.model = model
        if weights is not None:
            self.weights = weights
        self.hidden_size = hidden_size
        self._learned = LearnedRows((), hidden_size) if learned is None else learned
        parameter = next(model.parameters())
        self.dtype, self.device = parameter.dtype, parameter.device
        self._graphed = GraphedTower(plan_alike(model))
        self._loader = TileLoader(
            normalizer, tile_size=tile_size, patch_size=patch_size, device=self.device, dtype=self.dtype
        )

    def load_pixels(self, *features: Mapping[str, object]) -> Tensor:
        """As `TileLoader.load_pixels`."""
        return self._loader.load_pixels(*features)

    @torch.inference_mode()
    def encode(self, features: Sequence[Mapping[str, object]]) -> list[Tensor]:
        """Return rows for every item, from one call of the tower: [tiles · R, hidden_size], or those arranged."""
        patches = self._loader.load_patches(features)
        rows = self._graphed(patches, len(patches), self.dtype)
        parts = torch.split(rows, list(map(_count_tiles, features)))
        return arrange_rows([part.flatten(0, 1) for part in parts], self._learned, features)


def _count_tiles(item: Mapping[str, Any]) -> int:
    return len(item["pixels"]) + ("joined" in item) if "pixels" in item else int(item["num_tiles"])


def _has_floats(item: Mapping[str, Any]) -> bool:
    """Return whether an item's pixels are no levels, of which kernels look up what they are normalized to."""
    return "pixels" in item and item["pixels"].dtype != np.uint8


def _find_padding(features: Sequence[Mapping[str, Any]], size: Size, device: torch.device) -> Tensor:
    """Return which pixels of tiles of `size` lie outside of the items' boxes: bool [tiles, height, width, 1]."""
    [boxes] = upload([np.concatenate([item["boxes"] for item in features])], device)
    top, left, bottom, right = boxes[:, :, None].unbind(1)
    rows, columns = (torch.arange(length, device=device) for length in size)
    is_row, is_column = (rows >= top) & (rows < bottom), (columns >= left) & (columns < right)
    return ~(is_row[:, :, None] & is_column[:, None, :])[..., None]


def scale_whole(tiles: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return the picture that tiles [N, H, W, 3] are, row by row of the `grid`, in the size of one: [1, H, W, 3]."""
    height, width = tiles.shape[1:3]
    lines = tiles.reshape(*grid, height, width, 3).transpose(1, 2)
    picture = lines.reshape(1, grid[0] * height, grid[1] * width, 3).permute(0, 3, 1, 2)
    return F.interpolate(picture, size=(height, width), mode="bicubic").permute(0, 2, 3, 1)

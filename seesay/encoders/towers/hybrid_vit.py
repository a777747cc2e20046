"""Two towers that see the same picture, one of them larger, with a projector: DeepSeek-VL's (arXiv 2403.05525, section
2.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seesay.checkpoint import Checkpoint
from seesay.device.linear.linear import Linear
from seesay.encoders.graphs import MAX_ROWS, GraphedEncoder, GraphedTower
from seesay.encoders.towers.layers import PixelNormalizer
from seesay.encoders.towers.sam import Neck, Sam, SamConfig, Shrinking
from seesay.encoders.towers.tiles import TileLoader
from seesay.encoders.towers.vit import Vit, VitConfig
from seesay.encoders.towers.weights import load_tower


class _HybridProjector(nn.Module):
    """Each tower's rows become one half, then there is a second linear layer."""

    def __init__(self, low_size: int, high_size: int, out_hidden_size: int) -> None:
        super().__init__()
        self.vision_proj = Linear(low_size, out_hidden_size // 2)
        self.high_res_vision_proj = Linear(high_size, out_hidden_size // 2)
        self.proj = Linear(out_hidden_size, out_hidden_size)

    def forward(self, low: Tensor, high: Tensor) -> Tensor:
        return self.proj(F.gelu(torch.cat((self.high_res_vision_proj(high), self.vision_proj(low)), dim=-1)))


class HybridVit(nn.Module):
    """The patch vectors of both sizes of N pictures, the smaller one's first, in one row of numbers each, to rows
    [N, R, out_hidden_size]. What comes behind the SAM is named as in the checkpoints: its last rows, and those of an
    earlier layer times `high_res_vision_alpha`."""

    def __init__(self, low: VitConfig, high: SamConfig, out_hidden_size: int) -> None:
        super().__init__()
        self.tower, self.high = Vit(low), Sam(high)
        self.high_res_vision_neck = Neck(high.layers.hidden_size, high.out_channels)
        self.high_res_vision_proj = Shrinking(high.out_channels, 2 * high.out_channels, 4 * high.out_channels)
        self.high_res_vision_alpha = nn.Parameter(torch.empty(1))
        self.projector = _HybridProjector(low.hidden_size, 4 * high.out_channels, out_hidden_size)
        self._num_low, self._fine = low.num_patches, 2 * (4 * low.grid[0],)
        self._low_length = low.num_patches * 3 * low.patch_size[0] * low.patch_size[1]

    def forward(self, x: Tensor) -> Tensor:
        low = x[:, : self._low_length].view(len(x), self._num_low, -1)
        high = x[:, self._low_length :].view(len(x), self.high.config.side**2, -1)
        channels, kept = self.high(high)
        rows, more = (
            self.high_res_vision_proj(F.interpolate(each, size=self._fine, mode="bilinear", align_corners=False))
            for each in (channels, self.high_res_vision_neck(kept))
        )
        result: Tensor = self.projector(self.tower(low), rows + more * self.high_res_vision_alpha)
        return result


class HybridEncoder(GraphedEncoder):
    """Encodes pictures with both towers.

    Features: `pixels` uint8 [1, S, S, 3] and `high_pixels` uint8 [1, H, H, 3], the picture in both sizes; or its
    decoded `frames` and two packed `chains`, of the smaller and of the larger one. If the encoder `shrinks`, they are
    those of the larger picture alone, as `TileLoader` has them, and the smaller one is made of it without rounding.
    A picture's rows are [R, hidden_size].
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        name_of: Callable[[str], str | None],
        towers: tuple[VitConfig, SamConfig],
        normalizers: tuple[PixelNormalizer, PixelNormalizer],
        *,
        hidden_size: int,
        shrinks: bool,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Load both towers. `normalizers` are those of the smaller and of the larger pictures. Raises `CheckpointError`
        naming a tensor that does not fit."""
        low, high = towers
        with torch.device("meta"):
            model = HybridVit(low, high, hidden_size)
        self.weights = load_tower(model, checkpoint, name_of, device=device, dtype=dtype)
        self.hidden_size, self.device, self.dtype = hidden_size, device, dtype
        most = MAX_ROWS // (low.num_patches + high.side**2)
        self._graphed = GraphedTower(lambda _shape, *, num_before: model, max_rows=most)  # noqa: ARG005
        sizes = (low.image_size, low.patch_size), (2 * (high.image_size,), 2 * (high.patch_size,))
        self._low, self._high = (
            TileLoader(normalizer, tile_size=tile, patch_size=patch, device=device, dtype=dtype)
            for normalizer, (tile, patch) in zip(normalizers, sizes, strict=True)
        )
        self._normalizers, self._low_size, self._shrinks = normalizers, low.image_size, shrinks

    def load_pixels(self, *features: Mapping[str, object]) -> Tensor:
        """As `TileLoader.load_pixels`, of the smaller pictures."""
        if self._shrinks:
            return self._load_both(features)[0]
        return self._low.load_pixels(*(_pick(item, 0) for item in features))

    def load_high_pixels(self, *features: Mapping[str, object]) -> Tensor:
        """As `TileLoader.load_pixels`, of the larger pictures."""
        if self._shrinks:
            return self._load_both(features)[1]
        return self._high.load_pixels(*(_pick(item, 1) for item in features))

    def _load_both(self, features: Sequence[Mapping[str, object]]) -> tuple[Tensor, Tensor]:
        """Return the normalized smaller and larger pictures, float32 [N, H, W, 3]. The smaller ones are torchvision's
        `Resize` of float32 pictures, which is torch's antialiased bilinear interpolation."""
        levels = torch.cat(self._high.load_levels(*features))
        channels = levels.permute(0, 3, 1, 2).to(torch.float32)
        small = F.interpolate(channels, size=self._low_size, mode="bilinear", align_corners=False, antialias=True)
        low, high = self._normalizers
        return low(small.permute(0, 2, 3, 1).contiguous(), channel_dim=3), high(levels, channel_dim=3)

    @torch.inference_mode()
    def encode(self, features: Sequence[Mapping[str, object]]) -> list[Tensor]:
        """Return rows for every item, from one call of the towers: [R, hidden_size]."""
        loaders = (self._low, self._high)
        if self._shrinks:
            both = (loader.cut(each) for loader, each in zip(loaders, self._load_both(features), strict=True))
            patches = [each.to(self.dtype) for each in both]
        else:
            patches = [
                loader.load_patches([_pick(item, index) for item in features]) for index, loader in enumerate(loaders)
            ]
        joined = torch.cat([each.flatten(1) for each in patches], dim=1)
        return list(self._graphed(joined, len(features), self.dtype))


def _pick(item: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    """Return the features of the smaller (0) or of the larger (1) picture alone."""
    if "frames" in item:
        return {"num_tiles": 1, "frames": item["frames"], "chains": item["chains"][index : index + 1]}
    return {"num_tiles": 1, "pixels": item[("pixels", "high_pixels")[index]]}

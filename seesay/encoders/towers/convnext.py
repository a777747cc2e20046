"""ConvNeXt (arXiv 2201.03545), of which all stages are taken."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seesay.device.linear.linear import Linear

STEM_SIDE = 4
"""Pixels of the side of a patch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvNeXtConfig:
    """The number of blocks and of channels of each stage; each stage halves the grid of the one before it."""

    depths: tuple[int, ...]
    sizes: tuple[int, ...]
    norm_eps: float = 1e-6


class _ChannelNorm(nn.LayerNorm):
    """Norms the channels of each place of [N, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _Mlp(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = Linear(size, 4 * size), Linear(4 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class _Block(nn.Module):
    def __init__(self, size: int, norm_eps: float) -> None:
        super().__init__()
        self.conv_dw = nn.Conv2d(size, size, 7, padding=3, groups=size)
        self.norm = nn.LayerNorm(size, norm_eps)
        self.mlp = _Mlp(size)
        self.gamma = nn.Parameter(torch.empty(size))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.conv_dw(x).flatten(2).transpose(1, 2)
        made = self.mlp(self.norm(rows)) * self.gamma
        result: Tensor = x + made.transpose(1, 2).reshape(x.shape)
        return result


class _Stage(nn.Module):
    """before: channels of the stage before; None for the first one, which keeps its grid."""

    def __init__(self, before: int | None, size: int, depth: int, norm_eps: float) -> None:
        super().__init__()
        self.downsample = nn.ModuleList()
        if before is not None:
            self.downsample.extend((_ChannelNorm(before, norm_eps), nn.Conv2d(before, size, 2, stride=2)))
        self.blocks = nn.ModuleList(_Block(size, norm_eps) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in (*self.downsample, *self.blocks):
            x = layer(x)
        return x


class ConvNeXt(nn.Module):
    """Normalized pictures [N, 3, H, W] to the channels of all stages [N, sum of sizes, H / 4, W / 4], those of later
    ones scaled up."""

    def __init__(self, config: ConvNeXtConfig) -> None:
        super().__init__()
        first, eps = config.sizes[0], config.norm_eps
        self.stem = nn.ModuleList((nn.Conv2d(3, first, STEM_SIDE, stride=STEM_SIDE), _ChannelNorm(first, eps)))
        steps = pairwise((None, *config.sizes))
        self.stages = nn.ModuleList(
            _Stage(before, size or 0, depth, eps) for (before, size), depth in zip(steps, config.depths, strict=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.stem:
            x = layer(x)
        found = []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        height, width = found[0].shape[-2:]
        return torch.cat([found[0], *(scale(each, (height, width)) for each in found[1:])], dim=1)


def scale(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Return [N, C, *size] of [N, C, H, W], by bilinear interpolation without antialiasing in float32."""
    return F.interpolate(x.float(), size=size, mode="bilinear", align_corners=False).to(x.dtype)

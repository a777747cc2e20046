"""The tower of SAM (arXiv 2304.02643): windows of a large picture, or in some layers all of it, attend within
themselves, with learned terms for distances."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seesay.device.linear.linear import Linear
from seesay.encoders.towers.fractional_positions import stretch_positions
from seesay.encoders.towers.layers import Segments
from seesay.encoders.towers.vit_layers import Angles, Attention, Block, LayerConfig, run_blocks

_NECK_EPS = 1e-6
_ALIGNMENT = 8
"""Heads whose size is a multiple of this take the fast kernels of attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamConfig:
    """Sizes of a tower. `image_size` and `patch_size` are pixels of a side.

    window: the side of the windows in patches; those at the end of a line are padded with zeros. global_layers: layers
    without windows. kept_layer: a layer whose output is returned, too; None: the last one. out_channels: channels
    behind the neck.
    """

    layers: LayerConfig
    image_size: int
    patch_size: int
    num_layers: int
    window: int
    global_layers: tuple[int, ...]
    out_channels: int
    kept_layer: int | None = None

    @property
    def side(self) -> int:
        """Patches in a side of the picture."""
        return self.image_size // self.patch_size


class _RelativeAttention(Attention):
    """Attention of the rows of square windows, or of whole pictures where there is no `window`. To a score is added the
    product of the query and a learned vector for the distance in height, and of one for that in width (MViTv2, arXiv
    2112.01526, section 4.1).

    These terms are products, too: a query gets its products with all distances as further components, and a key has
    there 1 for its own line and column and 0 for the others. So no bias is made for all pairs of rows.
    """

    def __init__(self, config: LayerConfig, side: int, window: int | None) -> None:
        super().__init__(config)
        self._window = window
        length = 2 * (window or side) - 1
        self.rel_pos_h = nn.Parameter(torch.empty(length, config.head_dim))
        self.rel_pos_w = nn.Parameter(torch.empty(length, config.head_dim))

    def forward(self, x: Tensor, segments: Segments | None = None, angles: Angles | None = None) -> Tensor:
        """Return the input of `proj` for rows [N, side², size]."""
        assert segments is None and angles is None
        side = math.isqrt(x.shape[1])
        grids = x.view(len(x), side, side, -1)
        if self._window is None:
            return self._attend(grids).flatten(1, 2)
        return _join_windows(self._attend(_cut_windows(grids, self._window)), len(x), side).flatten(1, 2)

    def _attend(self, grids: Tensor) -> Tensor:
        """Return full attention within each of the grids [N, side, side, size]."""
        count, side, _, size = grids.shape
        heads, dim = self.heads
        query, key, value = self.qkv(grids).view(count, side, side, 3, heads, dim).permute(3, 0, 4, 1, 2, 5)
        places = torch.arange(side, device=grids.device)
        distances = places[:, None] - places + side - 1
        lines = torch.einsum("nhyxc,ykc->nhyxk", query, _stretch_distances(self.rel_pos_h, side)[distances])
        columns = torch.einsum("nhyxc,xkc->nhyxk", query, _stretch_distances(self.rel_pos_w, side)[distances])
        marks = torch.eye(side, dtype=query.dtype, device=query.device)
        of_line, of_column = marks[:, None].expand(-1, side, -1), marks.expand(side, -1, -1)
        of_key = torch.cat((of_line, of_column), dim=-1).expand(count, heads, -1, -1, -1)
        scale = dim**-0.5
        padding = -(dim + 2 * side) % _ALIGNMENT
        query = torch.cat((query, lines / scale, columns / scale, query.new_zeros(*query.shape[:-1], padding)), dim=-1)
        key = torch.cat((key, of_key, key.new_zeros(*key.shape[:-1], padding)), dim=-1)
        mixed = F.scaled_dot_product_attention(query.flatten(2, 3), key.flatten(2, 3), value.flatten(2, 3), scale=scale)
        return mixed.transpose(1, 2).reshape(count, side, side, size)


def _stretch_distances(table: Tensor, side: int) -> Tensor:
    """Return the vectors [2 · side - 1, size] of the distances in a line of `side` rows: those of a table for another
    side, scaled by linear interpolation in float32."""
    length = 2 * side - 1
    if len(table) == length:
        return table
    scaled = F.interpolate(table.float().T[None], size=length, mode="linear")
    return scaled[0].T.to(table.dtype)


def _cut_windows(grids: Tensor, window: int) -> Tensor:
    """Cut grids [N, side, side, size] into windows [N · W², window, window, size], row by row, with zeros behind the
    last lines and columns."""
    count, side, _, size = grids.shape
    missing = -side % window
    padded = F.pad(grids, (0, 0, 0, missing, 0, missing))
    num = (side + missing) // window
    cut = padded.view(count, num, window, num, window, size).transpose(2, 3)
    return cut.reshape(-1, window, window, size)


def _join_windows(windows: Tensor, count: int, side: int) -> Tensor:
    """Undo `_cut_windows` for `count` grids."""
    window, size = windows.shape[2:]
    num = -(-side // window)
    joined = windows.view(count, num, num, window, window, size).transpose(2, 3)
    return joined.reshape(count, num * window, num * window, size)[:, :side, :side]


class Convolution(nn.Module):
    """A convolution with 3 x 3 weights, padded by 1, without a bias."""

    def __init__(self, in_size: int, out_size: int, stride: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_size, in_size, 3, 3))
        self._stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, stride=self._stride, padding=1)


class Neck(nn.Module):
    """Rows [N, side², size] to channels [N, out_size, side, side]."""

    def __init__(self, size: int, out_size: int) -> None:
        super().__init__()
        self.conv1 = Linear(size, out_size, bias=False)
        self.norm1 = nn.LayerNorm(out_size, _NECK_EPS)
        self.conv2 = Convolution(out_size, out_size, 1)
        self.norm2 = nn.LayerNorm(out_size, _NECK_EPS)

    def forward(self, x: Tensor) -> Tensor:
        side = math.isqrt(x.shape[1])
        x = self.conv2(self.norm1(self.conv1(x)).transpose(1, 2).unflatten(2, (side, side)))
        result: Tensor = self.norm2(x.permute(0, 2, 3, 1))
        return result.permute(0, 3, 1, 2)


class Shrinking(nn.Module):
    """Channels [N, C, h, w] to rows [N, ⌈h / 4⌉ · ⌈w / 4⌉, out_size], by two convolutions that halve them."""

    def __init__(self, size: int, inner_size: int, out_size: int) -> None:
        super().__init__()
        self.conv1 = Convolution(size, inner_size, 2)
        self.conv2 = Convolution(inner_size, out_size, 2)

    def forward(self, channels: Tensor) -> Tensor:
        rows: Tensor = self.conv2(self.conv1(channels))
        return rows.flatten(2).transpose(1, 2)


class Sam(nn.Module):
    """Patch vectors [N, patches, 3·P²] of squares to channels [N, out_channels, side, side] behind the neck, and to the
    rows [N, patches, size] behind the `kept_layer`. For squares of another side than `image_size`, learned positions
    and distances are scaled."""

    def __init__(self, config: SamConfig) -> None:
        super().__init__()
        self.config = config
        size, side = config.layers.hidden_size, config.side
        self.patch_embed = Linear(3 * config.patch_size**2, size)
        self.pos_embed = nn.Parameter(torch.empty(1, side, side, size))
        self.blocks = nn.ModuleList(
            Block(
                config.layers,
                _RelativeAttention(config.layers, side, None if index in config.global_layers else config.window),
            )
            for index in range(config.num_layers)
        )
        self.neck = Neck(size, config.out_channels)

    def forward(self, patches: Tensor) -> tuple[Tensor, Tensor]:
        side = math.isqrt(patches.shape[1])
        positions = stretch_positions(self.pos_embed.flatten(0, 2), (side, side), antialias=True)
        x = self.patch_embed(patches) + positions
        kept = x
        for index, _ in enumerate(run_blocks(self.blocks, x, None, [None] * len(self.blocks))):
            if index == self.config.kept_layer:
                kept = x.clone()  # the layers change x in place
        return self.neck(x), kept

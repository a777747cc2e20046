"""The vision towers of Qwen2-VL and Qwen2.5-VL: patches of pictures and clips of any size, packed into one call.

Rotary positions in two axes; every frame attends within itself, in Qwen2.5-VL most layers only within windows.
Architecture: arXiv 2409.12191 section 2.1 and arXiv 2502.13923 section 2.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from seesay.encoders.layers import (
    Mlp,
    PixelNormalizer,
    RMSNorm,
    SegmentGroup,
    attend,
    get_activation,
    group_segments,
)

Grid = tuple[int, int, int]
_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenVisionConfig:
    """Sizes of the tower. `patch_dim` is the length of a patch vector, channels · frames · height · width.

    `uses_rms_norm`: RMS norm and a gated MLP (Qwen2.5-VL), else layer norm and a plain MLP. `window_size` is the side
    of a window in merged tokens, None without windows; layers in `full_attention_layers` see whole frames anyway.
    """

    depth: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    out_hidden_size: int
    patch_dim: int
    merge_size: int
    activation: str
    uses_rms_norm: bool
    window_size: int | None = None
    full_attention_layers: frozenset[int] = frozenset()
    rope_theta: float = 10000.0

    @property
    def merge_unit(self) -> int:
        """Patches in one merged token."""
        return self.merge_size**2

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Where the rows of a packed batch go. `order` [G] puts merge groups into the tower's order and `inverse` [G] puts
    them back; None when nothing moves."""

    order: Tensor | None
    inverse: Tensor | None
    cos: Tensor
    sin: Tensor
    windows: tuple[SegmentGroup, ...]
    frames: tuple[SegmentGroup, ...]


@lru_cache(maxsize=256)
def _patch_coordinates(height: int, width: int, merge_size: int) -> npt.NDArray[np.int64]:
    """(row, column) of a frame's patches in merge-group order: int64 [height · width, 2]."""
    grid = np.indices((height, width)).reshape(2, height // merge_size, merge_size, width // merge_size, merge_size)
    return np.ascontiguousarray(grid.transpose(1, 3, 2, 4, 0).reshape(-1, 2))


@lru_cache(maxsize=256)
def _frame_windows(height: int, width: int, side: int | None) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """A frame of height · width merged tokens cut into windows of `side`² (smaller at the right and bottom).

    Returns the frame's tokens window by window, int64 [height · width], and each window's length.
    """
    tokens = np.arange(height * width)
    if side is None:
        return tokens, np.array([height * width])
    rows, columns = np.divmod(tokens, width)
    window = (rows // side) * -(-width // side) + columns // side
    return np.argsort(window, kind="stable"), np.bincount(window)


def _order_windows(
    grids: Sequence[Grid], config: QwenVisionConfig
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Merge groups of all items in the tower's order: windows of equal length lie together, the shortest first.

    Returns the order int64 [G], the windows' lengths in that order, and the frames' lengths in the items' order.
    """
    orders, lengths, frames, start = [], [], [], 0
    for grid_t, grid_h, grid_w in grids:
        height, width = grid_h // config.merge_size, grid_w // config.merge_size
        order, sizes = _frame_windows(height, width, config.window_size)
        offsets = start + np.arange(grid_t)[:, None] * (height * width)
        orders.append((offsets + order).ravel())
        lengths.append(np.tile(sizes, grid_t))
        frames.append(np.full(grid_t, height * width))
        start += grid_t * height * width
    joined, sizes = np.concatenate(orders), np.concatenate(lengths)
    by_length = np.argsort(np.repeat(sizes, sizes), kind="stable")
    return joined[by_length], np.sort(sizes), np.concatenate(frames)


def make_layout(grids: Sequence[Grid], config: QwenVisionConfig, device: torch.device) -> PackedLayout:
    """How items of these grids (t, h, w), in patches, are packed into one call."""
    unit = config.merge_unit
    order, window_lengths, frame_lengths = _order_windows(grids, config)
    inverse = np.argsort(order)
    coordinates = np.concatenate([np.tile(_patch_coordinates(h, w, config.merge_size), (t, 1)) for t, h, w in grids])
    coordinates = coordinates.reshape(-1, unit, 2)[order].reshape(-1, 2)
    # Angles of a head: the first half of its frequencies turn with the row, the second with the column.
    quarter = config.head_dim // 4
    frequencies = config.rope_theta ** (-np.arange(quarter, dtype=np.float64) / quarter)
    angles = torch.from_numpy((coordinates[:, :, None] * frequencies).reshape(len(coordinates), -1).astype(np.float32))
    angles = angles.to(device)
    rows = np.arange(len(order) * unit)
    frame_rows = (inverse[:, None] * unit + np.arange(unit)).ravel()
    frames = group_segments(frame_lengths * unit, frame_rows, device)
    windows = group_segments(window_lengths * unit, rows, device) if config.window_size is not None else frames
    moves = bool((np.diff(order) != 1).any())
    return PackedLayout(
        order=torch.from_numpy(order).to(device) if moves else None,
        inverse=torch.from_numpy(inverse).to(device) if moves else None,
        cos=angles.cos(),
        sin=angles.sin(),
        windows=windows,
        frames=frames,
    )


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x [P, k, heads, head_dim] by angles whose cos and sin are [P, head_dim / 2], in float32."""
    turned = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    (first, second), (to_first, to_second) = x.float().chunk(2, dim=-1), turned.chunk(2, dim=-1)
    cos, sin = cos[:, None, None], sin[:, None, None]
    torch.mul(first, cos, out=to_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=to_second).addcmul_(first, sin)
    return turned.to(x.dtype)


class _Attention(nn.Module):
    def __init__(self, config: QwenVisionConfig) -> None:
        super().__init__()
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.heads = (config.num_heads, config.head_dim)

    def forward(self, x: Tensor, layout: PackedLayout, groups: Sequence[SegmentGroup]) -> Tensor:
        qkv = self.qkv(x).view(len(x), 3, *self.heads)
        turned = _rotate(qkv[:, :2], layout.cos, layout.sin)
        result: Tensor = self.proj(attend(turned[:, 0], turned[:, 1], qkv[:, 2], groups))
        return result


class _GatedMlp(nn.Module):
    def __init__(self, config: QwenVisionConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation = get_activation(config.activation)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down_proj(self.activation(self.gate_proj(x)).mul_(self.up_proj(x)))
        return result


def _make_norm(config: QwenVisionConfig) -> nn.Module:
    return RMSNorm(config.hidden_size, _EPS) if config.uses_rms_norm else nn.LayerNorm(config.hidden_size, _EPS)


class _Block(nn.Module):
    def __init__(self, config: QwenVisionConfig) -> None:
        super().__init__()
        self.norm1, self.norm2 = _make_norm(config), _make_norm(config)
        self.attn = _Attention(config)
        self.mlp: nn.Module
        if config.uses_rms_norm:
            self.mlp = _GatedMlp(config)
        else:
            self.mlp = Mlp(config.hidden_size, config.intermediate_size, config.activation)

    def forward(self, x: Tensor, layout: PackedLayout, groups: Sequence[SegmentGroup]) -> Tensor:
        """Adds to x in place, and returns it."""
        x.add_(self.attn(self.norm1(x), layout, groups))
        return x.add_(self.mlp(self.norm2(x)))


class _Merger(nn.Module):
    """Joins the patches of a merge group and projects them to the decoder's size."""

    def __init__(self, config: QwenVisionConfig) -> None:
        super().__init__()
        self.size = config.hidden_size * config.merge_unit
        self.ln_q = _make_norm(config)
        last = nn.Linear(self.size, config.out_hidden_size)
        self.mlp = nn.Sequential(nn.Linear(self.size, self.size), nn.GELU(), last)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.mlp(self.ln_q(x).view(-1, self.size))
        return result


class QwenVisionTower(nn.Module):
    """Patch vectors [P, patch_dim] of items with the given grids, one after another, to rows [P / merge_unit, out]."""

    def __init__(self, config: QwenVisionConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = nn.Linear(config.patch_dim, config.hidden_size, bias=False)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.depth))
        self.merger = _Merger(config)

    def forward(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        layout = make_layout(grids, self.config, patches.device)
        x = self.patch_embed(patches)
        if layout.order is not None:
            x = x.view(len(layout.order), -1).index_select(0, layout.order).view(len(x), -1)
        for index, block in enumerate(self.blocks):
            x = block(x, layout, layout.frames if index in self.config.full_attention_layers else layout.windows)
        merged: Tensor = self.merger(x)
        return merged if layout.inverse is None else merged.index_select(0, layout.inverse)


class QwenEncoder:
    """The tower as an encoder. Features: `pixels` uint8 [P, patch_dim] and `grid` (t, h, w)."""

    def __init__(self, tower: QwenVisionTower, normalizer: PixelNormalizer) -> None:
        self.tower = tower
        self._normalizer = normalizer
        self.hidden_size = tower.config.out_hidden_size
        self.dtype = tower.patch_embed.weight.dtype
        self.device = tower.patch_embed.weight.device

    def load_pixels(self, *features: Mapping[str, Any]) -> Tensor:
        """The items' normalized patch vectors, one item after another: float32 [P, patch_dim] on the tower's device."""
        pixels = [torch.from_numpy(item["pixels"]).to(self.device) for item in features]
        patches = torch.empty(sum(map(len, pixels)), 3, pixels[0].shape[1] // 3, device=self.device)
        start = 0
        for part in pixels:
            out = patches[start : start + len(part)]
            self._normalizer(part.view(out.shape), channel_dim=1, out=out)
            start += len(part)
        return patches.flatten(1)

    @torch.inference_mode()
    def encode(self, features: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        """Rows [R_i, hidden_size] for every item, from one call of the tower."""
        patches = self.load_pixels(*features).to(self.dtype)
        grids = [item["grid"] for item in features]
        rows = self.tower(patches, grids)
        unit = self.tower.config.merge_unit
        return list(rows.split([t * h * w // unit for t, h, w in grids]))

"""The tower of pictures of one size, or of slices of any size: CLIP (arXiv 2103.00020), SigLIP (arXiv 2303.15343),
InternViT (arXiv 2404.16821), EVA-02 (arXiv 2303.11331), Perception Encoder (arXiv 2504.13180), AIMv2 (arXiv
2411.14402) and Qwen-VL's OpenCLIP (arXiv 2308.12966)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from seesay.device.linear.linear import Linear
from seesay.encoders.towers.fractional_positions import find_positions, stretch_positions
from seesay.encoders.towers.layers import RMSNorm, SegmentGroup
from seesay.encoders.towers.vit_layers import Angles, Block, LayerConfig, run_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary positions in two axes: half of a head's angles are those of the row, then half those of the column; the
    other way round if `columns_first`. Places are counted from `offset`, in steps that make the grid as large as one of
    `grid` (height, width). A class token is not turned."""

    grid: tuple[int, int]
    theta: float = 10000.0
    offset: float = 0.0
    columns_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerRows:
    """Shape of a tower's output for a picture of `image_size`, cut into patches of `patch_size` (both (height, width)
    in pixels): rows of `size` for a `grid` (height, width), with one for a class token before them if it
    `has_class_token`."""

    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    grid: tuple[int, int]
    size: int
    has_class_token: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VitConfig:
    """Sizes of a tower. `image_size` and `patch_size` are (height, width) in pixels.

    `feature_layers` are the layers whose outputs are joined (0: the embeddings, i: after layer i); layers above the
    last of them are not built. has_final_norm: a layer norm is behind the last layer, the only
    feature layer. has_rms_ends: patches are RMS-normed before their positions are added, and that last norm is an RMS
    norm (AIMv2).
    has_class_token: a learned row comes before those of the patches. has_patch_bias: of the patch embedding.
    has_input_norm: patches, with their positions, are normed before the first layer. has_positions: there are learned
    positions; has_class_position: one of them is the class token's, the first one, or with `has_last_class_position`
    the last.

    position_side: None if each patch has a learned position of its own. Otherwise the side of a square table of
        positions; patches take that of their share of the picture (`find_positions`), or, if it
        `stretches_positions`, the table is scaled to the grid (`stretch_positions`).
    rope: rotary positions; None without.
    has_batch_axes: the checkpoint has the class token and the positions with leading axes of length 1. class_axes: the
        number of those of the class token, where it is another one than two with and none without batch axes.
    """

    layers: LayerConfig
    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    feature_layers: tuple[int, ...]
    has_class_token: bool
    has_patch_bias: bool = True
    has_input_norm: bool = False
    has_final_norm: bool = False
    has_rms_ends: bool = False
    has_positions: bool = True
    has_class_position: bool = True
    has_last_class_position: bool = False
    position_side: int | None = None
    stretches_positions: bool = False
    rope: RopeConfig | None = None
    has_batch_axes: bool = True
    class_axes: int | None = None

    @classmethod
    def of_clip(cls, vision: Any, *, has_class_token: bool, **options: Any) -> Self:
        """Return what the `vision_config` of a CLIP, which has a class token, or SigLIP says under Transformers' names,
        and `options`, which have precedence."""
        sizes = {
            "layers": LayerConfig(
                hidden_size=vision.hidden_size,
                num_heads=vision.num_attention_heads,
                intermediate_size=vision.intermediate_size,
                activation=vision.hidden_act,
                norm_eps=vision.layer_norm_eps,
            ),
            "image_size": (vision.image_size, vision.image_size),
            "patch_size": (vision.patch_size, vision.patch_size),
            "has_class_token": has_class_token,
            "has_patch_bias": not has_class_token,
            "has_input_norm": has_class_token,
            "has_batch_axes": False,
        }
        return cls(**{**sizes, **options})

    @property
    def hidden_size(self) -> int:
        return self.layers.hidden_size

    @property
    def num_layers(self) -> int:
        return max(self.feature_layers)

    @property
    def rows(self) -> TowerRows:
        return TowerRows(
            image_size=self.image_size,
            patch_size=self.patch_size,
            grid=self.grid,
            size=self.hidden_size * len(self.feature_layers),
            has_class_token=self.has_class_token,
        )

    @property
    def grid(self) -> tuple[int, int]:
        """Patches in the height and in the width of a picture."""
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]

    @property
    def num_patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def num_positions(self) -> int:
        """Learned positions in the checkpoint."""
        count = self.num_patches if self.position_side is None else self.position_side**2
        return count + (self.has_class_token and self.has_class_position)


@dataclass(frozen=True, slots=True)
class Packing:
    """Pictures of any sizes in one call, one after another: the learned position int64 [P] of each patch, and the
    pictures' segments, each of which attends within itself."""

    positions: Tensor
    segments: Sequence[SegmentGroup]


class Vit(nn.Module):
    """Patch vectors [N, patches, 3·ph·pw] to the joined feature layers [N, patches, hidden · layers], with a row for
    the class token before those of the patches if there is one. A tower without a class token and rotary positions also
    takes packed vectors [P, 3·ph·pw], and makes [P, hidden · layers]."""

    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        self.config = config
        size, front = config.hidden_size, (1,) * config.has_batch_axes
        self.patch_embed = Linear(3 * config.patch_size[0] * config.patch_size[1], size, bias=config.has_patch_bias)
        class_front = (1,) * (2 * len(front) if config.class_axes is None else config.class_axes)
        self.cls_token = nn.Parameter(torch.empty(*class_front, size)) if config.has_class_token else None
        self.pos_embed: nn.Parameter | None = None
        if config.has_positions:
            self.pos_embed = nn.Parameter(torch.empty(*front, config.num_positions, size))
        self.norm_pre = config.layers.make_norm() if config.has_input_norm else None
        self.blocks = nn.ModuleList(Block(config.layers) for _ in range(config.num_layers))
        self.norm_patches = RMSNorm(size, config.layers.norm_eps) if config.has_rms_ends else None
        last_norm = RMSNorm if config.has_rms_ends else nn.LayerNorm
        self.norm = last_norm(size, config.layers.norm_eps) if config.has_final_norm else None
        self._places: Tensor | None = None
        if config.position_side is not None and not config.stretches_positions:
            places = find_positions(config.grid, config.position_side, "multiplied")
            if places.tolist() != list(range(config.num_positions)):
                self._places = torch.from_numpy(places)
        self._angles = None if config.rope is None else _compute_angles(config, config.rope)

    def forward(self, patches: Tensor, packing: Packing | None = None) -> Tensor:
        if packing is not None:
            assert self.cls_token is None and self._angles is None and self.norm_patches is None
            assert self.pos_embed is not None
            positions = self.pos_embed.flatten(0, -2).index_select(0, packing.positions)
            return self._compute(self.patch_embed(patches) + positions, packing.segments, None)
        x = self._embed(patches)
        if self._angles is None:
            return self._compute(x, None, None)
        count, length, _ = x.shape
        segments = (SegmentGroup(count, length, slice(0, count * length)),)
        rows = self._compute(x.flatten(0, 1), segments, self._repeat_angles(count))
        return rows.view(count, length, -1)

    def _embed(self, patches: Tensor) -> Tensor:
        x, config = self.patch_embed(patches), self.config
        if self.norm_patches is not None:
            x = self.norm_patches(x)
        positions = self._find_own_positions(x.device)
        if self.cls_token is None:
            return x if positions is None else x + positions
        if positions is not None and not config.has_class_position:
            x = x + positions
        x = torch.cat((self.cls_token.expand(len(patches), 1, -1), x), dim=1)
        return x + positions if positions is not None and config.has_class_position else x

    def _find_own_positions(self, device: torch.device) -> Tensor | None:
        if self.pos_embed is not None and self.config.stretches_positions:
            return stretch_positions(self.pos_embed.flatten(0, -2), self.config.grid)
        if self.pos_embed is not None and self.config.has_last_class_position:
            return self.pos_embed.roll(1, dims=-2)
        if self.pos_embed is None or self._places is None:
            return self.pos_embed
        if self._places.device != device:
            self._places = self._places.to(device)
        return self.pos_embed.flatten(0, -2)[self._places]

    def _repeat_angles(self, count: int) -> Angles:
        assert self._angles is not None
        device = self.patch_embed.weight.device
        if self._angles[0].device != device:
            self._angles = (self._angles[0].to(device), self._angles[1].to(device))
        return self._angles[0].repeat(count, 1), self._angles[1].repeat(count, 1)

    def _compute(self, x: Tensor, segments: Sequence[SegmentGroup] | None, angles: Angles | None) -> Tensor:
        if self.norm_pre is not None:
            x = self.norm_pre(x)
        wanted = self.config.feature_layers
        normed = x
        outputs = {0: x.clone()} if 0 in wanted else {}
        last = self.config.num_layers
        each = [segments] * len(self.blocks)
        for index, normed in enumerate(run_blocks(self.blocks, x, self.norm, each, angles), start=1):
            if index in wanted:
                outputs[index] = normed if index == last else x.clone()
        return torch.cat([outputs[index] for index in wanted], dim=-1) if len(wanted) > 1 else outputs[wanted[0]]


def _compute_angles(config: VitConfig, rope: RopeConfig) -> Angles:
    """Return the angles of one picture's rows: see `Angles`."""
    with torch.device("cpu"):
        quarter = config.layers.head_dim // 4
        frequencies = rope.theta ** (-torch.arange(quarter, dtype=torch.float64) / quarter)
        lines, columns = (
            (torch.arange(count, dtype=torch.float64) + rope.offset) / count * wanted
            for count, wanted in zip(config.grid, rope.grid, strict=True)
        )
        places = [lines[:, None].expand(config.grid), columns.expand(config.grid)]
        axes = [place.flatten()[:, None] * frequencies for place in places]
        angles = torch.cat(axes[::-1] if rope.columns_first else axes, dim=1)
        if config.has_class_token:
            angles = torch.cat((angles.new_zeros(1, angles.shape[1]), angles))
        return angles.cos().float(), angles.sin().float()

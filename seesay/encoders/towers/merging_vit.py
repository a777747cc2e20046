"""MiniCPM-V 4.6's tower (openbmb/MiniCPM-V-4.6): a SigLIP for slices of any size, packed into one call. Behind one of
its layers the patches of a window attend to each other and become one row; behind the last one so do the rows of each
four neighbours."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from seesay.device.linear.layer_loading import LoadedLayers
from seesay.device.linear.linear import Linear
from seesay.device.transfers import upload
from seesay.encoders.graphs import GraphedEncoder, GraphedTower
from seesay.encoders.towers.fractional_positions import find_positions
from seesay.encoders.towers.layers import Norm, PixelNormalizer, SegmentGroup, get_activation, group_neighbours
from seesay.encoders.towers.pixels import PatchLoader
from seesay.encoders.towers.vit import VitConfig
from seesay.encoders.towers.vit_layers import Attention, Block, LayerConfig, run_blocks

Grid = tuple[int, int]
SIDE = 2
"""Patches, or rows, of the side of a square that becomes one row."""
_PER_ROW = SIDE * SIDE
_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class MergingConfig:
    """merged_layer: the number of the layer behind which windows become rows; None: none do."""

    tower: VitConfig
    out_hidden_size: int
    merged_layer: int | None

    @property
    def num_merges(self) -> int:
        return 1 if self.merged_layer is None else 2

    @property
    def patches_per_row(self) -> int:
        """Patches that become one row."""
        return int(_PER_ROW**self.num_merges)


class _JoinedMlp(nn.Module):
    """Two linear layers of rows that are joined, behind a norm of them all. Parameters are named as in checkpoints."""

    def __init__(self, size: int, inner_size: int, out_size: int, activation: str, eps: float) -> None:
        super().__init__()
        self.pre_norm = nn.LayerNorm(size, eps)
        self.linear_1, self.linear_2 = Linear(size, inner_size), Linear(inner_size, out_size)
        self._activation = get_activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(self._activation(self.linear_1(self.pre_norm(x))))


class _WindowMerger(nn.Module):
    """Attention within windows, and the rows [P, size] of each window to one [P / 4, size]: their mean, and what two
    layers make of them all."""

    def __init__(self, layers: LayerConfig) -> None:
        super().__init__()
        size, inner_size = layers.hidden_size, layers.intermediate_size
        self.norm1, self.attn = layers.make_norm(), Attention(layers)
        self.mlp = _JoinedMlp(
            _PER_ROW * size, _PER_ROW * inner_size, size, activation="gelu_pytorch_tanh", eps=layers.norm_eps
        )

    def forward(self, x: Tensor, normed: Tensor) -> Tensor:
        """`normed` is `norm1` of x."""
        windows = normed.view(-1, _PER_ROW, x.shape[1])
        x = x + self.attn.proj(self.attn(windows)).view(x.shape)
        joined = x.view(-1, _PER_ROW * x.shape[1])
        merged: Tensor = self.mlp(joined)
        return merged + x.view(-1, _PER_ROW, x.shape[1]).mean(dim=1)


@dataclass(frozen=True, slots=True)
class _Layout:
    """One call. order: which patch int64 [P] is where in the tower: those of a row lie together. positions: the learned
    position int64 [P] of each. whole, merged: the segments of slices, of patches and of windows."""

    order: Tensor
    positions: Tensor
    whole: Sequence[SegmentGroup]
    merged: Sequence[SegmentGroup]


class MergingTower(nn.Module):
    """Patch vectors [P, 3·p·p] of slices, row by row, one slice after another, to rows [P / 16, out_hidden_size]."""

    def __init__(self, config: MergingConfig) -> None:
        super().__init__()
        self.config, layers = config, config.tower.layers
        size = layers.hidden_size
        self.patch_embed = Linear(3 * math.prod(config.tower.patch_size), size)
        self.pos_embed = nn.Parameter(torch.empty(config.tower.num_positions, size))
        self.blocks = nn.ModuleList(Block(layers) for _ in range(config.tower.num_layers))
        self.vit_merger = None if config.merged_layer is None else _WindowMerger(layers)
        self.norm = nn.LayerNorm(size, layers.norm_eps)
        joined = _PER_ROW * size
        self.merger = _JoinedMlp(joined, joined, config.out_hidden_size, activation="gelu", eps=_EPS)

    def plan(self, grids: tuple[Grid, ...], *, num_before: int) -> Callable[[Tensor], Tensor]:
        """Return a function that computes slices of these grids (height, width) in patches."""
        del num_before
        lengths = np.array([math.prod(grid) for grid in grids])
        own = [_nest(grid, self.config.num_merges) for grid in grids]
        order = np.concatenate([first + each for first, each in zip(np.cumsum(lengths) - lengths, own, strict=True)])
        side = self.config.tower.grid[0]
        positions = np.concatenate([find_positions(grid, side, "divided") for grid in grids])[order]
        places, learned = upload([order, positions], self.pos_embed.device)
        layout = _Layout(places, learned, group_neighbours(lengths), group_neighbours(lengths // _PER_ROW))
        return partial(self._compute, layout)

    def _compute(self, layout: _Layout, patches: Tensor) -> Tensor:
        embedded = self.patch_embed(patches.index_select(0, layout.order))
        x = embedded + self.pos_embed.index_select(0, layout.positions)
        blocks, segments = list(self.blocks), layout.whole
        if self.vit_merger is not None:
            assert self.config.merged_layer is not None
            first = self.config.merged_layer + 1
            normed = _run(blocks[:first], x, self.vit_merger.norm1, segments)
            x = self.vit_merger(x, normed)
            blocks, segments = blocks[first:], layout.merged
        normed = _run(blocks, x, self.norm, segments)
        result: Tensor = self.merger(normed.view(-1, _PER_ROW * normed.shape[1]))
        return result


def _run(blocks: list[nn.Module], x: Tensor, norm: Norm, segments: Sequence[SegmentGroup]) -> Tensor:
    """Compute these layers, which change x in place. Return the norm of x."""
    if not blocks:
        return cast("Tensor", norm(x))
    [normed] = deque(run_blocks(nn.ModuleList(blocks), x, norm, [segments] * len(blocks)), maxlen=1)
    return normed


def _nest(grid: Grid, num_levels: int) -> npt.NDArray[np.int64]:
    """Return the places int64 [height · width] of the patches of a slice, so that those of a square lie together, and
    those of a square of squares, and so on; squares, and what is in one, are row by row."""
    height, width = grid
    inner = (SIDE,) * num_levels
    places = np.arange(height * width).reshape(height // SIDE**num_levels, *inner, width // SIDE**num_levels, *inner)
    axes = [axis for level in range(num_levels + 1) for axis in (level, num_levels + 1 + level)]
    found: npt.NDArray[np.int64] = places.transpose(axes).reshape(-1)
    return found


class MergingEncoder(GraphedEncoder):
    """The tower as an encoder. Features: those of `PatchLoader`, and `grids`, the (height, width) in patches of the
    item's slices. `weights` are those of the tower, where a checkpoint has them."""

    weights: LoadedLayers

    def __init__(self, tower: MergingTower, normalizer: PixelNormalizer, weights: LoadedLayers | None = None) -> None:
        self.tower = tower
        if weights is not None:
            self.weights = weights
        self._graphed = GraphedTower(tower.plan)
        self.hidden_size = tower.config.out_hidden_size
        self.dtype, self.device = tower.pos_embed.dtype, tower.pos_embed.device
        self._loader = PatchLoader(normalizer, device=self.device, dtype=self.dtype)

    def load_pixels(self, *features: Mapping[str, object]) -> Tensor:
        """Return the items' normalized patch vectors, slice after slice: [P, 3·p·p]."""
        return self._loader(features)

    @torch.inference_mode()
    def encode(self, features: Sequence[Mapping[str, object]]) -> list[Tensor]:
        """Return rows [R_i, hidden_size] for every item, from one call of the tower."""
        own = [[(height, width) for height, width in cast("Sequence[Grid]", item["grids"])] for item in features]
        rows = self._graphed(self.load_pixels(*features), tuple(grid for grids in own for grid in grids), self.dtype)
        counts = [sum(map(math.prod, grids)) // self.tower.config.patches_per_row for grids in own]
        return list(torch.split(rows, counts))

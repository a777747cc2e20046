"""The vision towers of Qwen2-VL, Qwen2.5-VL, Qwen3-VL, GLM-4.1V, Pixtral, Mistral 3, Kimi-VL (MoonViT), LFM2-VL
(SigLIP2), ERNIE-4.5-VL and Nemotron 3 Nano Omni (RADIO): patches of pictures and videos of any size, packed into one
call.

Rotary positions in two axes; every frame attends within itself, in Qwen2.5-VL most layers only within windows.
Qwen3-VL, GLM-4.1V and MoonViT add learned positions, SigLIP2 and RADIO have these alone; Qwen3-VL gives its decoder's
first layers the outputs of some of its own. Architecture: arXiv 2409.12191 section 2.1, arXiv 2502.13923 section 2.1,
arXiv 2511.21631 section 2, arXiv 2507.01006 section 2, arXiv 2410.07073 section 2, arXiv 2504.07491 section 2.1, arXiv
2502.14786 section 2.4 and arXiv 2412.07679.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from seesay.checkpoint import Checkpoint
from seesay.device.linear.layer_loading import LoadedLayers
from seesay.device.linear.linear import Linear
from seesay.device.streams import current_stream
from seesay.encoders.graphs import CALLS_BEFORE, GraphedEncoder, GraphedTower
from seesay.encoders.towers.downsampler import Downsampler, PatchMerger
from seesay.encoders.towers.layers import Norm, PixelNormalizer, RMSNorm, Segments, get_activation
from seesay.encoders.towers.packed_layout import (
    DownsamplerConfig,
    Grid,
    JoinedConfig,
    PackedLayout,
    PackedVisionConfig,
    ProjectorConfig,
    ResamplerConfig,
    make_kept_layout,
)
from seesay.encoders.towers.pixels import PatchLoader
from seesay.encoders.towers.temporal_resampler import TemporalResampler
from seesay.encoders.towers.vit_layers import Block, run_blocks
from seesay.encoders.towers.weights import load_tower
from seesay.values.frame_chain import CHANNELS


class _Merger(nn.Module):
    """Joins the patches of a merge group, normed by `ln_q`, and then by `pre_norm` if there is one, and projects them
    to the decoder's size."""

    def __init__(self, config: PackedVisionConfig) -> None:
        super().__init__()
        self.size = config.hidden_size * config.merge_unit
        self.ln_q = config.layers.make_norm()
        self.pre_norm = config.layers.make_norm() if config.norms_twice else None
        last = Linear(self.size, config.out_hidden_size)
        self.mlp = nn.Sequential(Linear(self.size, self.size), nn.GELU(), last)

    @property
    def input_norm(self) -> Norm | None:
        return self.ln_q

    def forward(self, normed: Tensor) -> Tensor:
        if self.pre_norm is not None:
            normed = self.pre_norm(normed)
        result: Tensor = self.mlp(normed.view(-1, self.size))
        return result


class _DeepMerger(nn.Module):
    """As `_Merger`, of the output of an inner block; the norm is of the joined patches."""

    def __init__(self, config: PackedVisionConfig) -> None:
        super().__init__()
        self.size = config.hidden_size * config.merge_unit
        self.ln_q = nn.LayerNorm(self.size, config.norm_eps)
        self.mlp = nn.Sequential(Linear(self.size, self.size), nn.GELU(), Linear(self.size, config.out_hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.mlp(self.ln_q(x.view(-1, self.size)))
        return result


class _Projector(nn.Module):
    """Projects patches, or merge groups of patches that `norm` has normed, to the decoder's size. Parameters are named
    as in checkpoints."""

    def __init__(self, config: PackedVisionConfig, projector: ProjectorConfig) -> None:
        super().__init__()
        size, out_size = config.hidden_size, config.out_hidden_size
        self.norm: RMSNorm | None = None
        if projector.merge_norm_eps is not None:
            self.norm = RMSNorm(size, projector.merge_norm_eps)
            self.patch_merger = PatchMerger(size, config.merge_unit, size, bias=False)
        self.linear_1 = Linear(size, out_size, bias=projector.has_bias)
        self.linear_2 = Linear(out_size, out_size, bias=projector.has_bias)
        self.activation = get_activation(projector.activation)

    @property
    def input_norm(self) -> Norm | None:
        return self.norm

    def forward(self, normed: Tensor) -> Tensor:
        joined = normed if self.norm is None else self.patch_merger(normed)
        return self.linear_2(self.activation(self.linear_1(joined)))


class _NormedDownsampler(Downsampler):
    """As `Downsampler`, of patches that `norm` has normed."""

    def __init__(self, config: PackedVisionConfig, sizes: DownsamplerConfig) -> None:
        super().__init__(
            config.hidden_size,
            config.merge_unit,
            config.out_hidden_size,
            inner_size=sizes.inner_size,
            activation=sizes.activation,
        )
        self.norm = config.layers.make_norm()

    @property
    def input_norm(self) -> Norm | None:
        return self.norm


_JOINED_EPS = 1e-5


class _JoinedProjector(nn.Module):
    """As `JoinedConfig` says, of patches that `norm` has normed, if there is one."""

    def __init__(self, config: PackedVisionConfig, sizes: JoinedConfig) -> None:
        super().__init__()
        self._size = config.hidden_size * config.merge_unit
        self.norm = config.layers.make_norm() if sizes.norms_patches else None
        norms = {None: None, "layer": nn.LayerNorm, "rms": RMSNorm}
        kind = norms[sizes.norm]
        self.layer_norm = None if kind is None else kind(self._size, _JOINED_EPS)
        self.linear_1 = Linear(self._size, sizes.inner_size, bias=sizes.has_bias)
        self.linear_2 = Linear(sizes.inner_size, config.out_hidden_size, bias=sizes.has_bias)
        self._activation = get_activation(sizes.activation)

    @property
    def input_norm(self) -> Norm | None:
        return self.norm

    def forward(self, normed: Tensor) -> Tensor:
        joined = normed.view(-1, self._size)
        if self.layer_norm is not None:
            joined = self.layer_norm(joined)
        return self.linear_2(self._activation(self.linear_1(joined)))


def _make_merger(
    config: PackedVisionConfig,
) -> _Merger | _Projector | _NormedDownsampler | _JoinedProjector | TemporalResampler:
    match config.projector:
        case None:
            return _Merger(config)
        case JoinedConfig() as sizes:
            return _JoinedProjector(config, sizes)
        case DownsamplerConfig() as sizes:
            return _NormedDownsampler(config, sizes)
        case ResamplerConfig(norm_eps=eps):
            return TemporalResampler(
                config.layers.make_norm(), config.hidden_size, config.merge_unit, config.out_hidden_size, eps=eps
            )
        case projector:
            return _Projector(config, projector)


class _Table(nn.Module):
    """A table of learned rows: [rows, size], or these in several axes."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*shape))

    def forward(self, indices: Tensor) -> Tensor:
        return self.weight.flatten(0, -2).index_select(0, indices)


class PackedVisionTower(nn.Module):
    """Turns patch vectors [P, patch_dim] of items, one after another, into rows [P / merge_unit, embedding_size]. Where
    videos have a linear layer of their own, it takes what `embed_patches` makes of the vectors, [P, hidden]."""

    def __init__(self, config: PackedVisionConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = Linear(config.patch_dim, config.hidden_size, bias=config.patch_bias)
        self.video_embed: Linear | None = None
        if config.step_frames:
            self.video_embed = Linear(config.step_frames * config.patch_dim, config.hidden_size, bias=config.patch_bias)
        if config.position_side is not None:
            side = config.position_side
            axes = {"rows": (side**2,), "grid": (side, side), "batch": (1, side**2)}[config.position_axes]
            self.pos_embed = _Table(*axes, config.hidden_size)
        self.prefix = _Table(config.num_prefix, config.hidden_size) if config.num_prefix else None
        self.blocks = nn.ModuleList(Block(config.layers) for _ in range(config.depth))
        self.patch_norm = config.layers.make_norm() if config.norms_patches else None
        self.merger = _make_merger(config)
        self.deep_mergers = nn.ModuleList(_DeepMerger(config) for _ in config.deep_layers)

    @property
    def device(self) -> torch.device:
        return self._first_norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self._first_norm.weight.dtype

    @property
    def _first_norm(self) -> Norm:
        return cast("Block", self.blocks[0]).norm1

    def fuse(self) -> None:
        """Let the norms add the biases of the residual updates, so that the matrix products add without bias; not of
        updates that are scaled, which no matrix product adds."""
        if self.config.has_scales:
            return
        offset = torch.zeros(self.config.hidden_size, device=self.device)
        for block in cast("list[Block]", list(self.blocks)):
            offset = block.leave_biases_out(offset)

    def forward(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        return self.plan(tuple((t, h, w) for t, h, w in grids), num_before=0)(patches)

    def plan(self, grids: tuple[Grid, ...], *, num_before: int) -> Callable[[Tensor], Tensor]:
        """Return a function that computes patches of items with these grids on the current stream. `num_before` is how
        often these grids have been computed before."""
        layout = make_kept_layout(grids, self.config, self.device, current_stream(self.device))
        return partial(self._compute, layout, layout.frames if num_before >= CALLS_BEFORE else layout.frames_once)

    def embed_patches(self, patches: Tensor) -> Tensor:
        """Return patch vectors of pictures, or of videos alone, in the layers' size: [P, hidden]."""
        layer = self.patch_embed
        if self.video_embed is not None and patches.shape[1] != self.config.patch_dim:
            frames = patches.view(len(patches), CHANNELS, self.config.step_frames, -1)
            layer, patches = self.video_embed, frames.transpose(1, 2).flatten(1)
        if self.config.has_channels_last:
            patches = patches.view(len(patches), CHANNELS, -1).transpose(1, 2).flatten(1)
        x = layer(patches)
        return x if self.patch_norm is None else self.patch_norm(x)

    def _embed(self, layout: PackedLayout, patches: Tensor) -> Tensor:
        """Return what the first layer takes, in the tower's order."""
        x = self.embed_patches(patches) if self.video_embed is None else patches
        if layout.order is not None:
            x = x.view(len(layout.order), -1).index_select(0, layout.order).view(len(x), -1)
        if layout.taps is not None:
            x = x + self._mix_positions(*layout.taps).to(x.dtype)
        if self.prefix is not None:
            assert layout.prefixed is not None
            x = torch.cat((self.prefix.weight, x)).index_select(0, layout.prefixed[0])
        return x

    def _compute(self, layout: PackedLayout, frames: Segments, patches: Tensor) -> Tensor:
        x = self._embed(layout, patches)
        blocks = cast("list[Block]", list(self.blocks))
        segments = [
            frames if self.config.window_size is None or index in self.config.full_attention_layers else layout.windows
            for index in range(len(blocks))
        ]
        result, deep = x, list[Tensor]()
        last_norm, angles = self.merger.input_norm, (layout.cos, layout.sin)
        for index, normed in enumerate(run_blocks(self.blocks, x, last_norm, segments, angles)):
            result = normed
            if index in self.config.deep_layers:
                merger, offset = self.deep_mergers[self.config.deep_layers.index(index)], blocks[index].offset
                deep.append(merger(x if offset is None else (x + offset).to(x.dtype)))
        if layout.prefixed is not None:
            result = result.index_select(0, layout.prefixed[1])
        merged: Tensor = torch.cat([self.merger(result), *deep], dim=1) if deep else self.merger(result)
        if layout.pairs is not None:
            assert isinstance(self.merger, TemporalResampler)
            return self.merger.join(*(merged.index_select(0, groups) for groups in layout.pairs))
        return merged if layout.inverse is None else merged.index_select(0, layout.inverse)

    def _mix_positions(self, indices: Tensor, shares: Tensor) -> Tensor:
        """Return the learned positions of all patches, float32 [P, hidden]."""
        mixed = torch.zeros(len(indices), self.config.hidden_size, device=self.device)
        for index, share in zip(indices.unbind(1), shares.unbind(1), strict=True):
            mixed.addcmul_(self.pos_embed(index).float(), share[:, None])
        return mixed


class PackedEncoder(GraphedEncoder):
    """The tower as an encoder. Features: those of `PatchLoader`, and `grid` (t, h, w), or `grids` of an item that has
    several. `weights` are those of the tower, where a checkpoint has them."""

    weights: LoadedLayers

    def __init__(
        self, tower: PackedVisionTower, normalizer: PixelNormalizer, weights: LoadedLayers | None = None
    ) -> None:
        self.tower = tower
        if weights is not None:
            self.weights = weights
        self._graphed = GraphedTower(tower.plan)
        self.hidden_size = tower.config.embedding_size
        self.dtype, self.device = tower.dtype, tower.device
        self._loader = PatchLoader(normalizer, device=self.device, dtype=self.dtype)

    @classmethod
    def load(
        cls,
        config: PackedVisionConfig,
        normalizer: PixelNormalizer,
        checkpoint: Checkpoint,
        name_of: Callable[[str], str | None],
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Self:
        """Return the tower with its weights on `device`. name_of, errors: see `load_tower`."""
        with torch.device("meta"):
            tower = PackedVisionTower(config)
        weights = load_tower(tower, checkpoint, name_of, device=device, dtype=dtype)
        return cls(tower, normalizer, weights)

    def load_pixels(self, *features: Mapping[str, object]) -> Tensor:
        """Return the items' normalized patch vectors, one item after another: [P, patch_dim], as the tower takes
        them."""
        return self._loader(features)

    @torch.inference_mode()
    def encode(self, features: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        """Return rows [R_i, hidden_size] for every item, from one call of the tower."""
        own = [tuple((t, h, w) for t, h, w in item.get("grids") or (item["grid"],)) for item in features]
        if self.tower.video_embed is None:
            vectors = self.load_pixels(*features)
        else:
            vectors = torch.cat([self.tower.embed_patches(self.load_pixels(item)) for item in features])
        rows = self._graphed(vectors, tuple(chain.from_iterable(own)), self.dtype)
        return list(torch.split(rows, [sum(map(self.tower.config.count_rows, grids)) for grids in own]))

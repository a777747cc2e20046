"""The vision towers of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: patches of pictures and videos of any size, packed into one
call.

Rotary positions in two axes; every frame attends within itself, in Qwen2.5-VL most layers only within windows. Qwen3-VL
adds learned positions, and gives its decoder's first layers the outputs of some of its own.
Architecture: arXiv 2409.12191 section 2.1, arXiv 2502.13923 section 2.1 and arXiv 2511.21631 section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from seesay.device.backends import has_kernels
from seesay.device.layer_loading import LoadedLayers
from seesay.device.linear import Linear
from seesay.device.streams import current_stream
from seesay.device.transfers import upload
from seesay.encoders.graphs import CALLS_BEFORE, GraphedTower
from seesay.encoders.layers import (
    GatedMlp,
    Mlp,
    Norm,
    PixelNormalizer,
    RMSNorm,
    Segments,
    SegmentTable,
    add_product_norm,
    attend_rotated,
    group_neighbours,
    group_segments,
)
from seesay.encoders.pixels import PatchLoader
from seesay.errors import CheckpointError

Grid = tuple[int, int, int]
_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenVisionConfig:
    """Sizes of the tower. `patch_dim` is the length of a patch vector, channels · frames · height · width.

    `uses_rms_norm`: RMS norm and a gated MLP (Qwen2.5-VL), else layer norm and a plain MLP. `window_size` is the side
    of a window in merged tokens, None without windows; layers in `full_attention_layers` attend to whole frames.
    position_side: side of the square grid of learned positions, which is stretched over a frame; None without one.
    deep_layers: numbers of the layers whose output is merged, too, each into columns of its own behind the others.
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
    patch_bias: bool = False
    position_side: int | None = None
    deep_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if any(not 0 <= index < self.depth for index in self.deep_layers):
            raise CheckpointError(f"vision_config: layers {list(self.deep_layers)} are not all of the {self.depth}")

    @property
    def embedding_size(self) -> int:
        """Columns of the tower's output."""
        return self.out_hidden_size * (1 + len(self.deep_layers))

    @property
    def merge_unit(self) -> int:
        """Patches in one merged token."""
        return self.merge_size**2

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """The order of rows in a packed batch. `order` [G] permutes merge groups into the tower's order and `inverse` [G]
    back; None if nothing moves.

    `frames` is for batches whose grids have been seen before: a GPU computes them with cuDNN, whose first call for a
    shape takes tens of milliseconds. `frames_once` is for new grids. taps: indices int64 [P, 4] of learned positions
    and their shares float32 [P, 4], for each patch; None without such positions.
    """

    order: Tensor | None
    inverse: Tensor | None
    cos: Tensor
    sin: Tensor
    windows: Segments
    frames: Segments
    frames_once: Segments
    taps: tuple[Tensor, Tensor] | None = None


@lru_cache(maxsize=256)
def _patch_coordinates(height: int, width: int, merge_size: int) -> npt.NDArray[np.int64]:
    """Return (row, column) of a frame's patches in merge-group order: int64 [height · width, 2]."""
    grid = np.indices((height, width)).reshape(2, height // merge_size, merge_size, width // merge_size, merge_size)
    return np.ascontiguousarray(grid.transpose(1, 3, 2, 4, 0).reshape(-1, 2))


@lru_cache(maxsize=256)
def _frame_windows(height: int, width: int, side: int | None) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Cut a frame of height · width merged tokens into windows of `side`² (smaller at the right and bottom).

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
    """Return the merge groups of all items, frame by frame and inside a frame window by window: int64 [G]; the windows'
    lengths in that order; and the frames' lengths.
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
    return np.concatenate(orders), np.concatenate(lengths), np.concatenate(frames)


def _find_coordinates(
    grids: Sequence[Grid], order: npt.NDArray[np.int64], config: QwenVisionConfig
) -> npt.NDArray[np.int64]:
    """Return (row, column) of all patches in the tower's order: int64 [P, 2]."""
    coordinates = np.concatenate([np.tile(_patch_coordinates(h, w, config.merge_size), (t, 1)) for t, h, w in grids])
    return coordinates.reshape(-1, config.merge_unit, 2)[order].reshape(-1, 2)


def _find_taps(
    grids: Sequence[Grid], order: npt.NDArray[np.int64], coordinates: npt.NDArray[np.int64], config: QwenVisionConfig
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return which learned positions each patch takes, int64 [P, 4], and how much of each, float32 [P, 4]: bilinear,
    the corners of a frame are those of the grid."""
    assert config.position_side is not None
    side, unit = config.position_side, config.merge_unit
    counts = [t * h * w // unit for t, h, w in grids]
    sizes = np.repeat(np.array([grid[1:] for grid in grids]), counts, axis=0)[order].repeat(unit, axis=0)
    places = coordinates.astype(np.float32) * np.float32(side - 1) / np.maximum(sizes - 1, 1).astype(np.float32)
    first = np.floor(places).astype(np.int64)
    share = places - first
    rows, columns = (np.stack([first[:, axis], np.minimum(first[:, axis] + 1, side - 1)], axis=1) for axis in (0, 1))
    row_shares, column_shares = (np.stack([1 - share[:, axis], share[:, axis]], axis=1) for axis in (0, 1))
    indices = (rows[:, :, None] * side + columns[:, None]).reshape(-1, 4)
    return indices, (row_shares[:, :, None] * column_shares[:, None]).reshape(-1, 4).astype(np.float32)


def _compute_angles(coordinates: Tensor, config: QwenVisionConfig) -> Tensor:
    """Return the angles of a head's pairs, float32 [P, head_dim / 2]: the first half of the frequencies multiplies the
    row, the second the column."""
    quarter = config.head_dim // 4
    steps = torch.arange(quarter, dtype=torch.float64, device=coordinates.device)
    return (coordinates[:, :, None] * config.rope_theta ** (-steps / quarter)).flatten(1).float()


def make_layout(grids: Sequence[Grid], config: QwenVisionConfig, device: torch.device) -> PackedLayout:
    """Return the layout of one call with items of these grids (t, h, w), in patches."""
    return _make_gpu_layout(grids, config, device) if has_kernels(device) else _make_cpu_layout(grids, config)


@lru_cache(maxsize=16)
def _make_kept_layout(
    grids: tuple[Grid, ...], config: QwenVisionConfig, device: torch.device, _stream: torch.cuda.Stream | None
) -> PackedLayout:
    """Cache `make_layout` per stream: the memory of an evicted layout is reused by later work of its stream only."""
    return make_layout(grids, config, device)


def _make_cpu_layout(grids: Sequence[Grid], config: QwenVisionConfig) -> PackedLayout:
    """Order windows by length, the shortest first: each length is one batched attention."""
    unit, device = config.merge_unit, torch.device("cpu")
    order, window_lengths, frame_lengths = _order_windows(grids, config)
    order = order[np.argsort(np.repeat(window_lengths, window_lengths), kind="stable")]
    inverse = np.argsort(order)
    coordinates = _find_coordinates(grids, order, config)
    angles = _compute_angles(torch.from_numpy(coordinates), config)
    taps = None
    if config.position_side is not None:
        indices, shares = _find_taps(grids, order, coordinates, config)
        taps = torch.from_numpy(indices), torch.from_numpy(shares)
    frame_rows = (inverse[:, None] * unit + np.arange(unit)).ravel()
    frames = group_segments(frame_lengths * unit, frame_rows, device)
    windows = frames
    if config.window_size is not None:
        windows = group_segments(np.sort(window_lengths) * unit, np.arange(len(order) * unit), device)
    moves = bool((np.diff(order) != 1).any())
    return PackedLayout(
        order=torch.from_numpy(order) if moves else None,
        inverse=torch.from_numpy(inverse) if moves else None,
        cos=angles.cos(),
        sin=angles.sin(),
        windows=windows,
        frames=frames,
        frames_once=frames,
        taps=taps,
    )


def _make_gpu_layout(grids: Sequence[Grid], config: QwenVisionConfig, device: torch.device) -> PackedLayout:
    """Keep frames whole and in place, so that layers with full attention move nothing; a kernel takes windows of any
    lengths."""
    unit = config.merge_unit
    order, window_lengths, frame_lengths = _order_windows(grids, config)
    starts = [np.cumsum([0, *lengths * unit], dtype=np.int32) for lengths in (window_lengths, frame_lengths)]
    coordinates = _find_coordinates(grids, order, config)
    taps = [] if config.position_side is None else _find_taps(grids, order, coordinates, config)
    on_device = upload([order, np.argsort(order), coordinates, *starts, *taps], device)
    angles = _compute_angles(on_device[2], config)
    frames = group_neighbours(frame_lengths * unit)
    frames_once = SegmentTable(on_device[4], int(frame_lengths.max()) * unit)
    windows = SegmentTable(on_device[3], int(window_lengths.max()) * unit)
    moves = bool((np.diff(order) != 1).any())
    return PackedLayout(
        order=on_device[0] if moves else None,
        inverse=on_device[1] if moves else None,
        cos=angles.cos(),
        sin=angles.sin(),
        windows=windows,
        frames=frames,
        frames_once=frames_once,
        taps=(on_device[5], on_device[6]) if taps else None,
    )


class _Attention(nn.Module):
    def __init__(self, config: QwenVisionConfig) -> None:
        super().__init__()
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size)
        self.proj = Linear(config.hidden_size, config.hidden_size)
        self.heads = (config.num_heads, config.head_dim)

    def forward(self, x: Tensor, layout: PackedLayout, segments: Segments) -> Tensor:
        """Return the input of `proj`."""
        qkv = self.qkv(x).view(len(x), 3, *self.heads)
        return attend_rotated(qkv, layout.cos, layout.sin, segments)


def _make_norm(config: QwenVisionConfig) -> Norm:
    return RMSNorm(config.hidden_size, _EPS) if config.uses_rms_norm else nn.LayerNorm(config.hidden_size, _EPS)


def _sum_with_bias(offset: Tensor, linear: Linear) -> Tensor:
    assert linear.bias is not None
    return offset + linear.bias.float()


class _Block(nn.Module):
    def __init__(self, config: QwenVisionConfig) -> None:
        super().__init__()
        self.norm1, self.norm2 = _make_norm(config), _make_norm(config)
        self.attn = _Attention(config)
        mlp = GatedMlp if config.uses_rms_norm else Mlp
        self.mlp: GatedMlp | Mlp = mlp(config.hidden_size, config.intermediate_size, config.activation)
        self._offsets: tuple[Tensor | None, Tensor | None] = (None, None)

    @property
    def offset(self) -> Tensor | None:
        """What must be added to x behind this block: the sum of the biases that were left out."""
        return self._offsets[1]

    def leave_biases_out(self, offset: Tensor) -> Tensor:
        """Leave the biases of this block's updates out of x. `offset` is the sum of the biases left out before; returns
        the sum with this block's."""
        first = _sum_with_bias(offset, self.attn.proj)
        second = _sum_with_bias(first, self.mlp.last)
        self._offsets = (first, second)
        return second

    def forward(self, x: Tensor, normed: Tensor, layout: PackedLayout, segments: Segments, next_norm: Norm) -> Tensor:
        """Add to x, whose norm is given, in place. Return the next layer's norm of x."""
        attended = self.attn(normed, layout, segments)
        normed = add_product_norm(x, attended, self.attn.proj, self.norm2, self._offsets[0])
        return add_product_norm(x, self.mlp.inner(normed), self.mlp.last, next_norm, self._offsets[1])


class _Merger(nn.Module):
    """Joins the patches of a merge group, normed by `ln_q`, and projects them to the decoder's size."""

    def __init__(self, config: QwenVisionConfig) -> None:
        super().__init__()
        self.size = config.hidden_size * config.merge_unit
        self.ln_q = _make_norm(config)
        last = Linear(self.size, config.out_hidden_size)
        self.mlp = nn.Sequential(Linear(self.size, self.size), nn.GELU(), last)

    def forward(self, normed: Tensor) -> Tensor:
        result: Tensor = self.mlp(normed.view(-1, self.size))
        return result


class _DeepMerger(nn.Module):
    """As `_Merger`, of the output of an inner block; the norm is of the joined patches."""

    def __init__(self, config: QwenVisionConfig) -> None:
        super().__init__()
        self.size = config.hidden_size * config.merge_unit
        self.ln_q = nn.LayerNorm(self.size, _EPS)
        self.mlp = nn.Sequential(Linear(self.size, self.size), nn.GELU(), Linear(self.size, config.out_hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.mlp(self.ln_q(x.view(-1, self.size)))
        return result


class QwenVisionTower(nn.Module):
    """Turns patch vectors [P, patch_dim] of items, one after another, into rows [P / merge_unit, embedding_size]."""

    def __init__(self, config: QwenVisionConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = Linear(config.patch_dim, config.hidden_size, bias=config.patch_bias)
        if config.position_side is not None:
            self.pos_embed = nn.Embedding(config.position_side**2, config.hidden_size)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.depth))
        self.merger = _Merger(config)
        self.deep_mergers = nn.ModuleList(_DeepMerger(config) for _ in config.deep_layers)

    @property
    def device(self) -> torch.device:
        return self.merger.ln_q.weight.device

    def fuse(self) -> None:
        """Let the norms add the biases of the residual updates, so that the matrix products add without bias."""
        offset = torch.zeros(self.config.hidden_size, device=self.device)
        for block in cast("list[_Block]", list(self.blocks)):
            offset = block.leave_biases_out(offset)

    def forward(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        return self.plan(tuple((t, h, w) for t, h, w in grids), num_before=0)(patches)

    def plan(self, grids: tuple[Grid, ...], *, num_before: int) -> Callable[[Tensor], Tensor]:
        """Return a function that computes patches of items with these grids on the current stream. `num_before` is how
        often these grids have been computed before."""
        layout = _make_kept_layout(grids, self.config, self.device, current_stream(self.device))
        return partial(self._compute, layout, layout.frames if num_before >= CALLS_BEFORE else layout.frames_once)

    def _compute(self, layout: PackedLayout, frames: Segments, patches: Tensor) -> Tensor:
        x = self.patch_embed(patches)
        if layout.order is not None:
            x = x.view(len(layout.order), -1).index_select(0, layout.order).view(len(x), -1)
        if layout.taps is not None:
            x = x + self._mix_positions(*layout.taps).to(x.dtype)
        blocks = cast("list[_Block]", list(self.blocks))
        norms = [*(block.norm1 for block in blocks), self.merger.ln_q]
        normed, deep = norms[0](x), list[Tensor]()
        for index, (block, next_norm) in enumerate(zip(blocks, norms[1:], strict=True)):
            sees_frames = self.config.window_size is None or index in self.config.full_attention_layers
            segments = frames if sees_frames else layout.windows
            normed = block(x, normed, layout, segments, next_norm)
            if index in self.config.deep_layers:
                merger = self.deep_mergers[self.config.deep_layers.index(index)]
                deep.append(merger(x if block.offset is None else (x + block.offset).to(x.dtype)))
        merged: Tensor = torch.cat([self.merger(normed), *deep], dim=1) if deep else self.merger(normed)
        return merged if layout.inverse is None else merged.index_select(0, layout.inverse)

    def _mix_positions(self, indices: Tensor, shares: Tensor) -> Tensor:
        """Return the learned positions of all patches, float32 [P, hidden]."""
        mixed = torch.zeros(len(indices), self.config.hidden_size, device=self.device)
        for index, share in zip(indices.unbind(1), shares.unbind(1), strict=True):
            mixed.addcmul_(self.pos_embed(index).float(), share[:, None])
        return mixed


class QwenEncoder:
    """The tower as an encoder. Features: those of `PatchLoader`, and `grid` (t, h, w). `weights` are those of the
    tower, where a checkpoint has them."""

    weights: LoadedLayers

    def __init__(
        self, tower: QwenVisionTower, normalizer: PixelNormalizer, weights: LoadedLayers | None = None
    ) -> None:
        self.tower = tower
        if weights is not None:
            self.weights = weights
        self._graphed = GraphedTower(tower.plan)
        self.hidden_size = tower.config.embedding_size
        self.dtype = tower.merger.ln_q.weight.dtype
        self.device = tower.device
        group = (tower.config.merge_size, tower.config.merge_size)
        self._loader = PatchLoader(normalizer, group=group, device=self.device, dtype=self.dtype)

    def load_pixels(self, *features: Mapping[str, Any]) -> Tensor:
        """Return the items' normalized patch vectors, one item after another: [P, patch_dim], as the tower takes
        them."""
        return self._loader(features)

    def disable_graphs(self) -> None:
        self._graphed.records_graphs = False

    def forget_graphs(self) -> None:
        self._graphed.forget()

    @torch.inference_mode()
    def encode(self, features: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        """Return rows [R_i, hidden_size] for every item, from one call of the tower."""
        grids = tuple((t, h, w) for t, h, w in (item["grid"] for item in features))
        rows = self._graphed(self.load_pixels(*features), grids, self.dtype)
        unit = self.tower.config.merge_unit
        return list(torch.split(rows, [t * h * w // unit for t, h, w in grids]))

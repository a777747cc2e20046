"""The sizes of a tower that packs pictures and videos of any size into one call, and the layout of such a call: the
order of its patches, their rotary angles and learned positions, and the segments that attend to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from seesay.device.backends import has_kernels
from seesay.device.transfers import upload
from seesay.encoders.towers.layers import Segments, SegmentTable, group_neighbours, group_segments
from seesay.encoders.towers.vit_layers import QKV, LayerConfig
from seesay.errors import CheckpointError

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectorConfig:
    """The two linear layers behind a tower, where these are not Qwen's. merge_norm_eps: of an RMS norm, and behind it a
    linear layer that joins the patches of a merge group; None without both, when merge groups are single patches."""

    activation: str
    has_bias: bool
    merge_norm_eps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DownsamplerConfig:
    """A convolution behind the tower's last norm, which joins the patches of a merge group, and a `GluProjector` with
    this inner size and activation: see `Downsampler`."""

    inner_size: int
    activation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedConfig:
    """Two linear layers of the patches of a merge group, one behind another. norm: what norms these together first.
    norms_patches: whether the tower has a last norm."""

    inner_size: int
    activation: str
    has_bias: bool
    norm: Literal["layer", "rms"] | None
    norms_patches: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ResamplerConfig:
    """A `TemporalResampler`, which joins the patches of a merge group, and then two frames of a video. norm_eps: of its
    last norm."""

    norm_eps: float


Blending = Literal["bilinear", "bicubic", "antialiased", "cropped"]
"""How a square grid of learned positions is stretched over a frame: bilinear, with the corners of the grid at the
centers of the frame's outer patches; or bicubic, with the edges of both in one place, and the outer positions repeated
beyond the grid; or bilinear with the edges in one place, where a frame of fewer patches takes the mean of more
positions; or bilinear over the square of the frame's longer side, whose upper left part the frame takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedVisionConfig:
    """Sizes of the tower. `patch_dim` is the length of a patch vector, channels · frames · height · width.

    `uses_rms_norm`: RMS norm and a gated MLP (Qwen2.5-VL), else layer norm and a plain MLP. `window_size` is the side
    of a window in merged tokens, None without windows; layers in `full_attention_layers` attend to whole frames.
    position_side: side of the square grid of learned positions, which is stretched over a frame; None without one.
    position_blending: how it is stretched.
    deep_layers: numbers of the layers whose output is merged, too, each into columns of its own behind the others.
    norms_patches: patches are normed before the first layer. has_biases: of the layers' matrices. has_qkv_bias: of
    those of queries, keys and values; None: as the others. splits_qkv: the checkpoint has separate weights for queries,
    keys and values. alternates_axes: of one list of rotary frequencies rows take every other one, and columns the rest,
    instead of both the same. rotates_neighbours: see `LayerConfig`; of each two pairs of neighbours, which have the
    same frequency, the first is turned by the column and the second by the row, instead of rows having the first half
    of all pairs. projector: None for Qwen's merger. norms_twice: a second norm is behind the last one.
    num_prefix: learned rows before the patches of each frame, which the layers compute with them and the projector does
    not take. has_scales: see `LayerConfig`. position_axes: of the checkpoint's learned positions: their rows, the two
    axes of the grid, or their rows below an axis of one. has_rotary: whether there are rotary positions.
    has_channels_last: the checkpoint's weights are for patches laid out as (y, x, channel). step_frames: so many frames
    of a video have patch vectors together, with a linear layer of their own, whose weights are for vectors laid out as
    (frame, channel, y, x); 0 without one.
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
    position_blending: Blending = "bilinear"
    deep_layers: tuple[int, ...] = ()
    norm_eps: float = 1e-6
    norms_patches: bool = False
    has_biases: bool = True
    has_qkv_bias: bool | None = None
    splits_qkv: bool = False
    alternates_axes: bool = False
    rotates_neighbours: bool = False
    norms_twice: bool = False
    num_prefix: int = 0
    has_scales: bool = False
    position_axes: Literal["rows", "grid", "batch"] = "rows"
    has_rotary: bool = True
    has_channels_last: bool = False
    step_frames: int = 0
    projector: ProjectorConfig | DownsamplerConfig | JoinedConfig | ResamplerConfig | None = None

    def __post_init__(self) -> None:
        if any(not 0 <= index < self.depth for index in self.deep_layers):
            raise CheckpointError(f"vision_config: layers {list(self.deep_layers)} are not all of the {self.depth}")
        others = self.has_rotary or self.window_size is not None or self.deep_layers
        assert not (self.num_prefix and others), "rows before patches have no place, no window and no deep rows"

    @property
    def embedding_size(self) -> int:
        """Columns of the tower's output."""
        return self.out_hidden_size * (1 + len(self.deep_layers))

    @property
    def merge_unit(self) -> int:
        """Patches in one merged token."""
        return self.merge_size**2

    def count_rows(self, grid: Grid) -> int:
        """Return how many rows the tower makes of an item."""
        frames, height, width = grid
        frames = (frames + 1) // 2 if isinstance(self.projector, ResamplerConfig) else frames
        return frames * height * width // self.merge_unit

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def layers(self) -> LayerConfig:
        return LayerConfig(
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            intermediate_size=self.intermediate_size,
            activation=self.activation,
            norm_eps=self.norm_eps,
            qkv=QKV if self.splits_qkv else ("qkv",),
            has_qkv_bias=self.has_biases if self.has_qkv_bias is None else self.has_qkv_bias,
            has_biases=self.has_biases,
            uses_rms_norm=self.uses_rms_norm,
            rotates_neighbours=self.rotates_neighbours,
            has_scales=self.has_scales,
            is_gated=self.uses_rms_norm,
        )


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """The order of rows in a packed batch. `order` [G] permutes merge groups into the tower's order and `inverse` [G]
    back; None if nothing moves.

    `frames` is for batches whose grids have been seen before: a GPU computes them with cuDNN, whose first call for a
    shape takes tens of milliseconds. `frames_once` is for new grids. taps: indices int64 [P, K] of learned positions
    and their shares float32 [P, K], for each patch; None without such positions. pairs: int64 [2, R], the merge groups
    in the tower's order that the resampler joins; None without one. prefixed: with rows before the patches of F frames,
    the place of each row of the layers among those and all patches behind them, int64 [P + F · num_prefix], and the
    places of the patches among the layers' rows, int64 [P]; None without them.
    """

    order: Tensor | None
    inverse: Tensor | None
    cos: Tensor
    sin: Tensor
    windows: Segments
    frames: Segments
    frames_once: Segments
    taps: tuple[Tensor, Tensor] | None = None
    pairs: Tensor | None = None
    prefixed: tuple[Tensor, Tensor] | None = None


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
    grids: Sequence[Grid], config: PackedVisionConfig
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
    grids: Sequence[Grid], order: npt.NDArray[np.int64], config: PackedVisionConfig
) -> npt.NDArray[np.int64]:
    """Return (row, column) of all patches in the tower's order: int64 [P, 2]."""
    coordinates = np.concatenate([np.tile(_patch_coordinates(h, w, config.merge_size), (t, 1)) for t, h, w in grids])
    return coordinates.reshape(-1, config.merge_unit, 2)[order].reshape(-1, 2)


def _find_taps(
    grids: Sequence[Grid], order: npt.NDArray[np.int64], coordinates: npt.NDArray[np.int64], config: PackedVisionConfig
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return which learned positions each patch takes, int64 [P, K], and how much of each, float32 [P, K]. K is 4, or
    16 where they are blended cubically, or more where frames have fewer patches than there are positions."""
    assert config.position_side is not None
    side, unit = config.position_side, config.merge_unit
    counts = [t * h * w // unit for t, h, w in grids]
    sizes = np.repeat(np.array([grid[1:] for grid in grids]), counts, axis=0)[order].repeat(unit, axis=0)
    if config.position_blending == "antialiased":
        places, shares = _find_antialiased(coordinates, sizes, side)
    else:
        places, shares = _find_neighbours(coordinates, sizes, side, config.position_blending)
    (rows, columns), (row_shares, column_shares) = places.transpose(2, 1, 0), shares.transpose(2, 1, 0)
    indices = (rows[:, :, None] * side + columns[:, None]).reshape(len(rows), -1)
    return indices, (row_shares[:, :, None] * column_shares[:, None]).reshape(len(rows), -1)


def _find_pairs(
    grids: Sequence[Grid], inverse: npt.NDArray[np.int64], config: PackedVisionConfig
) -> list[npt.NDArray[np.int64]]:
    """Return the merge groups [2, R] at the same place of two frames after another, counted in the tower's order; a
    frame without another one is its own. Empty without a resampler."""
    if not isinstance(config.projector, ResamplerConfig):
        return []
    pairs, start = [], 0
    for frames, height, width in grids:
        groups = start + np.arange(frames * height * width // config.merge_unit).reshape(frames, -1)
        later = np.minimum(np.arange(0, frames, 2) + 1, frames - 1)
        pairs.append(np.stack([groups[::2].ravel(), groups[later].ravel()]))
        start += groups.size
    return [inverse[np.concatenate(pairs, axis=1)]]


def _find_prefixed(lengths: npt.NDArray[np.int64], count: int) -> list[npt.NDArray[np.int64]]:
    """Return `PackedLayout.prefixed` of frames of so many patches, in the tower's order; empty without rows before
    them."""
    if not count:
        return []
    starts, patches = np.cumsum(lengths) - lengths, count + np.arange(lengths.sum())
    rows = np.insert(patches, starts.repeat(count), np.tile(np.arange(count), len(lengths)))
    return [rows, np.flatnonzero(rows >= count)]


_Taps = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]
"""Places along each axis that a patch takes, [K, P, 2], and how much of each."""


def _find_neighbours(
    coordinates: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], side: int, blending: Blending
) -> _Taps:
    """Return the two or four neighbours of each patch at `coordinates` [P, 2] of frames of `sizes` [P, 2]."""
    is_cubic = blending == "bicubic"
    if blending == "cropped":
        sizes = sizes.max(axis=1, keepdims=True)
    if is_cubic or blending == "cropped":
        places = (coordinates + np.float32(0.5)) / sizes.astype(np.float32) * np.float32(side) - np.float32(0.5)
    else:
        places = coordinates.astype(np.float32) * np.float32(side - 1) / np.maximum(sizes - 1, 1).astype(np.float32)
    first = np.floor(places)
    steps, weigh = (range(-1, 3), _weigh_cubic) if is_cubic else (range(2), _weigh_linear)
    found = np.clip(np.stack([first + step for step in steps]), 0, side - 1).astype(np.int64)
    return found, weigh((places - first).astype(np.float32))


def _find_antialiased(coordinates: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], side: int) -> _Taps:
    """Return the places within the reach of a triangle around each patch, which is as wide as a patch is."""
    scale = np.float32(side) / sizes.astype(np.float32)
    reach = np.maximum(scale, np.float32(1))
    centers = (coordinates + np.float32(0.5)) * scale - np.float32(0.5)
    first = np.floor(centers - reach) + 1
    places = first + np.arange(int(np.ceil(2 * reach.max())))[:, None, None]
    shares = np.maximum(1 - np.abs(places - centers).astype(np.float32) / reach, np.float32(0))
    shares *= (places >= 0) & (places < side)
    shares /= shares.sum(axis=0)
    return np.clip(places, 0, side - 1).astype(np.int64), shares


def _weigh_linear(share: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the weights [2, …] of the neighbours of points that lie `share` behind the first of them."""
    return np.stack([1 - share, share])


_CUBIC = np.float32(-0.75)
"""The parameter of the convolution kernel (Keys 1981, equation 4) that torch has."""


def _weigh_cubic(share: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the weights [4, …] of the two neighbours on either side of points that lie `share` behind the second."""

    def near(distance: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return ((_CUBIC + 2) * distance - (_CUBIC + 3)) * distance**2 + 1

    def far(distance: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return _CUBIC * (((distance - 5) * distance + 8) * distance - 4)

    return np.stack([far(1 + share), near(share), near(1 - share), far(2 - share)])


def _compute_angles(coordinates: Tensor, num_rows: int, config: PackedVisionConfig) -> Tensor:
    """Return the angles of a head's pairs, float32 [num_rows, head_dim / 2]: the first half of the frequencies
    multiplies the row, the second the column; or every other one (`PackedVisionConfig.rotates_neighbours`). There are
    more rows than patches in towers without rotary positions only (`PackedVisionConfig.num_prefix`)."""
    if not config.has_rotary:
        return torch.zeros(num_rows, config.head_dim // 2, device=coordinates.device)
    quarter = config.head_dim // 4
    steps = torch.arange(quarter, dtype=torch.float64, device=coordinates.device)
    if config.alternates_axes:
        steps = torch.stack((steps, steps + 0.5))
    if config.rotates_neighbours:
        return (coordinates.flip(1)[:, None] * config.rope_theta ** (-steps / quarter)[:, None]).flatten(1).float()
    return (coordinates[:, :, None] * config.rope_theta ** (-steps / quarter)).flatten(1).float()


def make_layout(grids: Sequence[Grid], config: PackedVisionConfig, device: torch.device) -> PackedLayout:
    """Return the layout of one call with items of these grids (t, h, w), in patches."""
    return _make_gpu_layout(grids, config, device) if has_kernels(device) else _make_plain_layout(grids, config, device)


@lru_cache(maxsize=16)
def make_kept_layout(
    grids: tuple[Grid, ...], config: PackedVisionConfig, device: torch.device, _stream: torch.Stream | None
) -> PackedLayout:
    """Cache `make_layout` per stream: the memory of an evicted layout is reused by later work of its stream only."""
    return make_layout(grids, config, device)


def _make_plain_layout(grids: Sequence[Grid], config: PackedVisionConfig, device: torch.device) -> PackedLayout:
    """Order windows by length, the shortest first: each length is one batched attention. Angles are computed on the
    host: not all devices have float64."""
    unit = config.merge_unit
    order, window_lengths, frame_lengths = _order_windows(grids, config)
    order = order[np.argsort(np.repeat(window_lengths, window_lengths), kind="stable")]
    inverse = np.argsort(order)
    coordinates = _find_coordinates(grids, order, config)
    taps = None
    if config.position_side is not None:
        indices, shares = _find_taps(grids, order, coordinates, config)
        taps = torch.from_numpy(indices).to(device), torch.from_numpy(shares).to(device)
    lengths, frame_rows = frame_lengths * unit, (inverse[:, None] * unit + np.arange(unit)).ravel()
    prefixed = []
    if config.num_prefix:  # without windows, frames are ordered by length
        lengths = np.sort(lengths)
        prefixed = [torch.from_numpy(each).to(device) for each in _find_prefixed(lengths, config.num_prefix)]
        lengths += config.num_prefix
        frame_rows = np.arange(lengths.sum())
    angles = _compute_angles(torch.from_numpy(coordinates), len(frame_rows), config)
    frames = group_segments(lengths, frame_rows, device)
    windows = frames
    if config.window_size is not None:
        windows = group_segments(np.sort(window_lengths) * unit, np.arange(len(order) * unit), device)
    moves = bool((np.diff(order) != 1).any())
    pairs = _find_pairs(grids, inverse, config)
    return PackedLayout(
        order=torch.from_numpy(order).to(device) if moves else None,
        inverse=torch.from_numpy(inverse).to(device) if moves else None,
        cos=angles.cos().to(device),
        sin=angles.sin().to(device),
        windows=windows,
        frames=frames,
        frames_once=frames,
        taps=taps,
        pairs=torch.from_numpy(pairs[0]).to(device) if pairs else None,
        prefixed=(prefixed[0], prefixed[1]) if prefixed else None,
    )


def _make_gpu_layout(grids: Sequence[Grid], config: PackedVisionConfig, device: torch.device) -> PackedLayout:
    """Keep frames whole and in place, so that layers with full attention move nothing; a kernel takes windows of any
    lengths."""
    unit = config.merge_unit
    order, window_lengths, frame_lengths = _order_windows(grids, config)
    lengths = frame_lengths * unit + config.num_prefix
    starts = [np.cumsum([0, *each], dtype=np.int32) for each in (window_lengths * unit, lengths)]
    coordinates = _find_coordinates(grids, order, config)
    taps = [] if config.position_side is None else _find_taps(grids, order, coordinates, config)
    inverse = np.argsort(order)
    pairs = _find_pairs(grids, inverse, config)
    prefixed = _find_prefixed(frame_lengths * unit, config.num_prefix)
    on_device = upload([order, inverse, coordinates, *starts, *taps, *pairs, *prefixed], device)
    angles = _compute_angles(on_device[2], int(lengths.sum()), config)
    frames = group_neighbours(lengths)
    frames_once = SegmentTable(on_device[4], int(lengths.max()))
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
        pairs=on_device[5 + len(taps)] if pairs else None,
        prefixed=(on_device[-2], on_device[-1]) if prefixed else None,
    )

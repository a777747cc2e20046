"""MiniCPM-V's tower (arXiv 2408.01800, section 3.1): a SigLIP for slices of any size, packed into one call, and a
resampler, whose learned queries make the same number of rows of each slice, or of several frames of a video together
(arXiv 2509.18154, section 2.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seesay.device.linear.layer_loading import LoadedLayers
from seesay.device.linear.linear import Linear
from seesay.device.transfers import upload
from seesay.encoders.graphs import GraphedEncoder, GraphedTower
from seesay.encoders.towers.fractional_positions import find_positions
from seesay.encoders.towers.layers import PixelNormalizer, SegmentGroup, group_neighbours
from seesay.encoders.towers.pixels import PatchLoader
from seesay.encoders.towers.vit import Packing, Vit, VitConfig

Grid = tuple[int, int]
MAX_PATCHES_AT_ONCE = 1 << 17
"""A long video is computed in several calls of at most so many patches, unless one pack has more."""
_EPS = 1e-6


class Pack(NamedTuple):
    """Slices that become `num_queries` rows together: their grids (height, width) in patches; for frames of a
    video, the place in time of each; and the length to which each slice is padded, 0 for its own."""

    grids: tuple[Grid, ...]
    times: tuple[int, ...] = ()
    padded: int = 0

    @property
    def num_patches(self) -> int:
        return sum(map(math.prod, self.grids))

    @property
    def cost(self) -> int:
        """The patches that go through the tower."""
        return len(self.grids) * self.padded or self.num_patches


@dataclass(frozen=True, slots=True, kw_only=True)
class ResamplerConfig:
    """num_queries: rows of `out_hidden_size` that each pack becomes. num_heads: of the resampler. has_lines: the tower
    takes the patches of a slice for one line, whose positions lie in the first line of its table (MiniCPM-V 2.5)."""

    tower: VitConfig
    num_queries: int
    num_heads: int
    out_hidden_size: int
    has_lines: bool = False


@dataclass(frozen=True, slots=True)
class _Layout:
    """One call. columns, rows: the place int64 [P] of each patch in its slice. packs: the segments of packs. times:
    what is added to the keys of each patch for its place in time [P, size], for videos. padded: the place int64 [P] of
    each patch among those of the tower, where slices are padded."""

    packing: Packing
    columns: Tensor
    rows: Tensor
    packs: Sequence[SegmentGroup]
    times: Tensor | None
    padded: Tensor | None


class _CrossAttention(nn.Module):
    """Attention of one set of queries to each of several segments of keys and values, with the tensors of torch's
    `MultiheadAttention`."""

    def __init__(self, size: int, num_heads: int) -> None:
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.empty(3 * size, size))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * size))
        self.out_proj = Linear(size, size)
        self._num_heads = num_heads

    def forward(self, query: Tensor, key: Tensor, value: Tensor, segments: Sequence[SegmentGroup]) -> Tensor:
        """Return [N, Q, size] for query [Q, size], and key and value [P, size] of N segments."""
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        query, key, value = (
            F.linear(x, weight, bias).view(len(x), self._num_heads, -1)
            for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
        )
        attended = []
        for group in segments:
            shape = (group.count, group.length, *key.shape[1:])
            keys, values = (x[group.rows].view(shape).transpose(1, 2) for x in (key, value))
            queries = query.transpose(0, 1).expand(group.count, -1, -1, -1)
            attended.append(F.scaled_dot_product_attention(queries, keys, values).transpose(1, 2).flatten(2))
        return self.out_proj(torch.cat(attended))


class Resampler(nn.Module):
    """Rows [P, hidden] of N packs to [N, num_queries, size]."""

    def __init__(self, config: ResamplerConfig) -> None:
        super().__init__()
        size, hidden = config.out_hidden_size, config.tower.hidden_size
        self.query = nn.Parameter(torch.empty(config.num_queries, size))
        self.kv_proj = None if hidden == size else Linear(hidden, size, bias=False)
        self.attn = _CrossAttention(size, config.num_heads)
        self.ln_q, self.ln_kv, self.ln_post = (nn.LayerNorm(size, _EPS) for _ in range(3))
        self.proj = nn.Parameter(torch.empty(size, size))

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        segments: Sequence[SegmentGroup],
        query_positions: Tensor | None = None,
    ) -> Tensor:
        """positions [P, size] are added to the keys, query_positions [num_queries, size] to the queries."""
        value = self.ln_kv(x if self.kv_proj is None else self.kv_proj(x))
        query = self.ln_q(self.query)
        query = query if query_positions is None else query + query_positions
        attended = self.attn(query, value + positions, value, segments)
        result: Tensor = self.ln_post(attended) @ self.proj
        return result


class ResampledSiglip(nn.Module):
    """Patch vectors [P, 3·p·p] of packs, one after another, to rows [packs, num_queries, out_hidden_size]."""

    def __init__(self, config: ResamplerConfig) -> None:
        super().__init__()
        self.config = config
        self.tower = Vit(config.tower)
        self.resampler = Resampler(config)
        self._waves = torch.empty(0)  # not of the checkpoint: see `_find_waves`

    def plan(self, packs: tuple[Pack, ...], *, num_before: int) -> Callable[[Tensor], Tensor]:  # noqa: ARG002
        """Return a function that computes packs."""
        grids = [grid for pack in packs for grid in pack.grids]
        places = [np.indices(grid).reshape(2, -1) for grid in grids]
        lengths = np.array([math.prod(grid) for grid in grids])
        padded = np.array([pack.padded or math.prod(grid) for pack in packs for grid in pack.grids])
        seen = [(1, int(length)) for length in padded] if self.config.has_lines else grids
        positions = [find_positions(grid, self.config.tower.grid[0], "added") for grid in seen]
        device = self.resampler.query.device
        rows, columns, learned, kept = upload(
            [*np.concatenate(places, axis=1), np.concatenate(positions), _find_kept(lengths, padded)],
            device,
        )
        joined = np.array([pack.num_patches for pack in packs])
        packing = Packing(learned, group_neighbours(padded))
        times = self._find_times(packs, lengths)
        is_padded = bool((padded > lengths).any())
        layout = _Layout(packing, columns, rows, group_neighbours(joined), times, kept if is_padded else None)
        return partial(self._compute, layout, self._find_waves(max(map(max, grids))))

    def _compute(self, layout: _Layout, waves: Tensor, patches: Tensor) -> Tensor:
        if layout.padded is None:
            x = self.tower(patches, layout.packing)
        else:
            whole = patches.new_zeros(len(layout.packing.positions), patches.shape[1])
            whole.index_copy_(0, layout.padded, patches)
            x = self.tower(whole, layout.packing).index_select(0, layout.padded)
        positions = torch.cat([waves.index_select(0, places) for places in (layout.columns, layout.rows)], dim=1)
        if layout.times is not None:
            positions = positions + layout.times
        result: Tensor = self.resampler(x, positions, layout.packs)
        return result

    def _find_times(self, packs: Sequence[Pack], lengths: npt.NDArray[np.int64]) -> Tensor | None:
        """Return what is added to the keys of patches, nothing for those of pictures; None without a video."""
        if not any(pack.times for pack in packs):
            return None
        query = self.resampler.query
        times = np.array([time for pack in packs for time in pack.times or (-1,) * len(pack.grids)])
        waves = make_waves(np.maximum(times, 0), query.shape[1]) * torch.from_numpy(times >= 0)[:, None]
        frames, table = upload([np.repeat(np.arange(len(times)), lengths), waves.numpy()], query.device)
        return table.to(query.dtype).index_select(0, frames)

    def _find_waves(self, length: int) -> Tensor:
        """Return `make_waves` for at least so many places, on the device and in the type of the model."""
        query = self.resampler.query
        if len(self._waves) < length or self._waves.device != query.device or self._waves.dtype != query.dtype:
            side = max(length, 2 * self.config.tower.grid[0])
            self._waves = make_waves(np.arange(side), query.shape[1] // 2).to(query)
        return self._waves


def _find_kept(lengths: npt.NDArray[np.int64], padded: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the places int64 [P] of the patches of slices of these lengths, where each slice is padded at its end."""
    first = np.cumsum(padded) - padded - (np.cumsum(lengths) - lengths)
    places: npt.NDArray[np.int64] = np.repeat(first, lengths) + np.arange(int(lengths.sum()))
    return places


def make_waves(places: npt.NDArray[np.int64], size: int) -> Tensor:
    """Return the sines, then the cosines, float32 [places, size] of places times size / 2 frequencies."""
    frequencies = 1.0 / 10000 ** (np.arange(size // 2, dtype=np.float32) / np.float32(size / 2))
    angles = places.astype(np.float32)[:, None] * frequencies.astype(np.float32)
    return torch.from_numpy(np.concatenate((np.sin(angles), np.cos(angles)), axis=1))


class ResampledEncoder(GraphedEncoder):
    """The model as an encoder. Features: those of `PatchLoader`, and `grids`, the (height, width) in patches of the
    item's slices or frames. `packs`: the places in time of frames, for each pack of neighbours; without it each slice
    is a pack. `padded`: the length to which slices are padded with zeros, which the tower attends to. `weights` are
    those of the model, where a checkpoint has them."""

    weights: LoadedLayers

    def __init__(
        self, model: ResampledSiglip, normalizer: PixelNormalizer, weights: LoadedLayers | None = None
    ) -> None:
        self.model = model
        if weights is not None:
            self.weights = weights
        self._graphed = GraphedTower(model.plan)
        self.hidden_size = model.config.out_hidden_size
        self.dtype, self.device = model.resampler.query.dtype, model.resampler.query.device
        self._loader = PatchLoader(normalizer, device=self.device, dtype=self.dtype)

    def load_pixels(self, *features: Mapping[str, object]) -> Tensor:
        """Return the items' normalized patch vectors, slice after slice: [P, 3·p·p]."""
        return self._loader(features)

    @torch.inference_mode()
    def encode(self, features: Sequence[Mapping[str, object]]) -> list[Tensor]:
        """Return rows [packs · num_queries, hidden_size] for every item, from one call of the tower, or from several
        for long videos."""
        packs = [_list_packs(item) for item in features]
        calls = list(_divide([pack for of_item in packs for pack in of_item]))
        vectors = torch.split(self.load_pixels(*features), [sum(pack.num_patches for pack in call) for call in calls])
        rows = [self._graphed(part, call, self.dtype) for part, call in zip(vectors, calls, strict=True)]
        joined = rows[0] if len(rows) == 1 else torch.cat(rows)
        return [part.flatten(0, 1) for part in torch.split(joined, list(map(len, packs)))]


def _list_packs(item: Mapping[str, Any]) -> list[Pack]:
    grids = [(height, width) for height, width in item["grids"]]
    if "packs" not in item:
        return [Pack((grid,), padded=item.get("padded", 0)) for grid in grids]
    found, first = [], 0
    for times in item["packs"]:
        found.append(Pack(tuple(grids[first : first + len(times)]), tuple(times)))
        first += len(times)
    return found


def _divide(packs: Sequence[Pack]) -> Iterator[tuple[Pack, ...]]:
    """Return packs in calls, in order."""
    call, num_patches = list[Pack](), 0
    for pack in packs:
        if call and num_patches + pack.cost > MAX_PATCHES_AT_ONCE:
            yield tuple(call)
            call, num_patches = [], 0
        call.append(pack)
        num_patches += pack.cost
    yield tuple(call)

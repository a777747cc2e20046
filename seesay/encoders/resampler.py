"""MiniCPM-V's tower (arXiv 2408.01800, section 3.1): a SigLIP for slices of any size, packed into one call, and a
resampler, whose learned queries make the same number of rows of each slice."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seesay.device.layer_loading import LoadedLayers
from seesay.device.linear import Linear
from seesay.device.transfers import upload
from seesay.encoders.clip import ClipConfig, ClipTower, Packing
from seesay.encoders.graphs import GraphedEncoder, GraphedTower
from seesay.encoders.layers import PixelNormalizer, SegmentGroup, group_neighbours
from seesay.encoders.pixels import PatchLoader

Grid = tuple[int, int]
_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ResamplerConfig:
    """num_queries: rows of `tower.out_hidden_size` that each slice becomes. num_heads: of the resampler."""

    tower: ClipConfig
    num_queries: int
    num_heads: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """One call. columns, rows: the place int64 [P] of each patch in its slice."""

    packing: Packing
    columns: Tensor
    rows: Tensor


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
    """Rows [P, hidden] of N slices to [N, num_queries, size]."""

    def __init__(self, config: ResamplerConfig) -> None:
        super().__init__()
        size, hidden = config.tower.out_hidden_size, config.tower.hidden_size
        self.query = nn.Parameter(torch.empty(config.num_queries, size))
        self.kv_proj = None if hidden == size else Linear(hidden, size, bias=False)
        self.attn = _CrossAttention(size, config.num_heads)
        self.ln_q, self.ln_kv, self.ln_post = (nn.LayerNorm(size, _EPS) for _ in range(3))
        self.proj = nn.Parameter(torch.empty(size, size))

    def forward(self, x: Tensor, positions: Tensor, segments: Sequence[SegmentGroup]) -> Tensor:
        """positions [P, size] are added to the keys alone."""
        value = self.ln_kv(x if self.kv_proj is None else self.kv_proj(x))
        attended = self.attn(self.ln_q(self.query), value + positions, value, segments)
        result: Tensor = self.ln_post(attended) @ self.proj
        return result


class ResampledSiglip(nn.Module):
    """Patch vectors [P, 3·p·p] of slices, one after another, to rows [slices, num_queries, out_hidden_size]."""

    def __init__(self, config: ResamplerConfig) -> None:
        super().__init__()
        self.config = config
        self.tower = ClipTower(config.tower)
        self.resampler = Resampler(config)
        self._waves = torch.empty(0)  # not of the checkpoint: see `_find_waves`

    def plan(self, grids: tuple[Grid, ...], *, num_before: int) -> Callable[[Tensor], Tensor]:  # noqa: ARG002
        """Return a function that computes slices of these grids (height, width), in patches."""
        places = [np.indices(grid).reshape(2, -1) for grid in grids]
        positions = [find_positions(grid, self.config.tower.grid_side) for grid in grids]
        device = self.resampler.query.device
        rows, columns, learned = upload(
            [*np.concatenate(places, axis=1), np.concatenate(positions)],
            device,
        )
        lengths = np.array([math.prod(grid) for grid in grids])
        layout = _Layout(Packing(learned, group_neighbours(lengths)), columns, rows)
        return partial(self._compute, layout, self._find_waves(max(map(max, grids))))

    def _compute(self, layout: _Layout, waves: Tensor, patches: Tensor) -> Tensor:
        x = self.tower(patches, layout.packing)
        positions = torch.cat([waves.index_select(0, places) for places in (layout.columns, layout.rows)], dim=1)
        result: Tensor = self.resampler(x, positions, layout.packing.segments)
        return result

    def _find_waves(self, length: int) -> Tensor:
        """Return `make_waves` for at least so many places, on the device and in the type of the model."""
        query = self.resampler.query
        if len(self._waves) < length or self._waves.device != query.device or self._waves.dtype != query.dtype:
            side = max(length, 2 * self.config.tower.grid_side)
            self._waves = make_waves(side, query.shape[1] // 2).to(query)
        return self._waves


def find_positions(grid: Grid, side: int) -> npt.NDArray[np.int64]:
    """Return which learned position, of `side`² in a square, each patch of a slice takes: int64 [height · width]. The
    square is stretched over the slice, and a patch takes the position in which its first corner lies (NaViT, arXiv
    2307.06304, as published with Idefics2)."""
    # Corners lie on the edges of positions wherever one number divides the other: float32 rounding decides, so the
    # steps are rounded, and added up by `torch.arange`, as published.
    edges = torch.arange(1 / side, 1.0, 1 / side, device="cpu")
    steps = (float(np.float32(1) / np.float32(count)) for count in grid)
    lines, columns = (
        torch.bucketize(torch.arange(0, 1 - 1e-6, step, device="cpu"), edges, right=True) for step in steps
    )
    positions: npt.NDArray[np.int64] = (lines[:, None] * side + columns).flatten().numpy()
    return positions


def make_waves(length: int, size: int) -> Tensor:
    """Return the sines, then the cosines, float32 [length, size] of the places 0, 1, … times size / 2 frequencies."""
    frequencies = 1.0 / 10000 ** (np.arange(size // 2, dtype=np.float32) / np.float32(size / 2))
    angles = np.arange(length, dtype=np.float32)[:, None] * frequencies.astype(np.float32)
    return torch.from_numpy(np.concatenate((np.sin(angles), np.cos(angles)), axis=1))


class ResampledEncoder(GraphedEncoder):
    """The model as an encoder. Features: those of `PatchLoader`, and `grids`, the (height, width) in patches of the
    item's slices. `weights` are those of the model, where a checkpoint has them."""

    weights: LoadedLayers

    def __init__(
        self, model: ResampledSiglip, normalizer: PixelNormalizer, weights: LoadedLayers | None = None
    ) -> None:
        self.model = model
        if weights is not None:
            self.weights = weights
        self._graphed = GraphedTower(model.plan)
        self.hidden_size = model.config.tower.out_hidden_size
        self.dtype, self.device = model.resampler.query.dtype, model.resampler.query.device
        self._loader = PatchLoader(normalizer, group=(1, 1), device=self.device, dtype=self.dtype)

    def load_pixels(self, *features: Mapping[str, Any]) -> Tensor:
        """Return the items' normalized patch vectors, slice after slice: [P, 3·p·p]."""
        return self._loader(features)

    @torch.inference_mode()
    def encode(self, features: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        """Return rows [slices · num_queries, hidden_size] for every item, from one call of the tower."""
        counts = [len(item["grids"]) for item in features]
        grids = tuple((height, width) for item in features for height, width in item["grids"])
        rows = self._graphed(self.load_pixels(*features), grids, self.dtype)
        return [part.flatten(0, 1) for part in torch.split(rows, counts)]

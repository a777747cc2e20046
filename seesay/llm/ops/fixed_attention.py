"""Attention on the CPU whose result for a token has the same bits, whatever tokens are computed beside it.

A token's place in its sequence decides everything: queries are taken in tiles of `QUERIES` places, keys in tiles of
`KEYS`, one after another from the first one, with one softmax over all of them (Milakov & Gimelshein 2018). So all
products have the same shape, and a query has the same place in each. Keys that a query does not see weigh exactly 0.
All is computed in float32, and keys and values as the cache has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.ops.interface import RowLayout
from seesay.llm.ops.kv_codec import read_blocks
from seesay.llm.ops.slopes import find_bias
from seesay.llm.plans.window import Window, find_first_seen

QUERIES = 8
KEYS = 128


class Scores(NamedTuple):
    """How scores are made, as `Ops.attend` takes it."""

    scale: float
    window: Window | None
    soft_cap: float | None
    sinks: torch.Tensor | None
    slopes: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Tokens start … stop - 1 of the packed query lie at places first + offset … of their sequence, `first` being a
    multiple of `QUERIES`; they see keys before `num_seen`. runs int64 [2, QUERIES, 1], for each place of the tile: the
    first and the last place of its run; its own place outside of all runs."""

    start: int
    stop: int
    first: int
    offset: int
    num_seen: int
    runs: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedRow:
    """The blocks int64 [M] of a row, and its tiles. `masks`: what is hidden, by tile, first key and window."""

    blocks: torch.Tensor
    tiles: tuple[Tile, ...]
    masks: dict[tuple[int, int, Window | None], torch.Tensor] = field(default_factory=dict)


FixedPlan = tuple[FixedRow, ...]


def make_plan(layout: RowLayout) -> FixedPlan:
    """Return the rows of a step in tiles."""
    return tuple(_make_row(layout, row) for row in range(len(layout.kv_lens)))


def _make_row(layout: RowLayout, row: int) -> FixedRow:
    kv_len = int(layout.kv_lens[row])
    blocks = np.ascontiguousarray(layout.block_table[row, : -(-kv_len // layout.block_size)])
    return FixedRow(blocks=torch.from_numpy(blocks), tiles=tuple(_make_tiles(layout, row, kv_len)))


def _make_tiles(layout: RowLayout, row: int, kv_len: int) -> Iterator[Tile]:
    start, stop = int(layout.cu_seqlens_q[row]), int(layout.cu_seqlens_q[row + 1])
    place = kv_len - (stop - start)
    while start < stop:
        first, offset = place // QUERIES * QUERIES, place % QUERIES
        count = min(QUERIES - offset, stop - start)
        runs = np.tile(np.arange(first, first + QUERIES), (2, 1))
        if layout.runs is not None:
            runs[:, offset : offset + count] = layout.runs[:, start : start + count]
        num_seen = int(runs[1, offset : offset + count].max()) + 1
        yield Tile(
            start=start,
            stop=start + count,
            first=first,
            offset=offset,
            num_seen=num_seen,
            runs=torch.from_numpy(runs)[..., None],
        )
        start, place = start + count, place + count


def attend(query: torch.Tensor, cache: LayerCache, plan: FixedPlan, scores: Scores) -> torch.Tensor:
    """See `Ops.attend`."""
    output = torch.empty(query.shape, dtype=query.dtype)
    for row in plan:
        keys, values = _read_tiles(cache, row)
        for tile in row.tiles:
            output[tile.start : tile.stop] = _attend_tile(query, keys, values, row, tile, scores)
    return output


def _read_tiles(cache: LayerCache, row: FixedRow) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values of a row in tiles, [tiles, G, KEYS, D] each, dense, with zeros behind the last block."""
    num_kv_heads, head_dim = cache.layout.num_kv_heads, cache.layout.head_dim
    pairs = read_blocks(cache, row.blocks, torch.float32).float().reshape(-1, 2, num_kv_heads, head_dim)
    pairs = F.pad(pairs, (0, 0, 0, 0, 0, 0, 0, -len(pairs) % KEYS))
    keys, values = pairs.view(-1, KEYS, 2, num_kv_heads, head_dim).permute(2, 0, 3, 1, 4).contiguous().unbind(0)
    return keys, values


def _attend_tile(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, row: FixedRow, tile: Tile, scores: Scores
) -> torch.Tensor:
    num_heads, head_dim = query.shape[1:]
    num_kv_heads, count = keys.shape[1], tile.stop - tile.start
    rows = torch.zeros(num_heads, QUERIES, head_dim)
    rows[:, tile.offset : tile.offset + count] = query[tile.start : tile.stop].transpose(0, 1)
    rows = rows.view(num_kv_heads, -1, head_dim)
    top, total = _begin(scores.sinks, num_heads)
    output = torch.zeros(num_heads, QUERIES, head_dim)
    for number in range(_find_first_key(tile, scores.window) // KEYS, -(-tile.num_seen // KEYS)):
        found = torch.bmm(rows, keys[number].transpose(1, 2)).view(num_heads, QUERIES, KEYS)
        found = _change(found, number * KEYS, row, tile, scores)
        new_top = torch.maximum(top, found.amax(dim=-1, keepdim=True))
        base = new_top.masked_fill(new_top == -torch.inf, 0.0)
        weights, fade = found.sub_(base).exp_(), (top - base).exp_()
        total = total.mul_(fade).add_(weights.sum(dim=-1, keepdim=True))
        added = torch.bmm(weights.view(num_kv_heads, -1, KEYS), values[number])
        output = output.mul_(fade).add_(added.view_as(output))
        top = new_top
    output = output.div_(total.masked_fill(total == 0.0, 1.0))
    return output[:, tile.offset : tile.offset + count].transpose(0, 1).to(query.dtype)


def _begin(sinks: torch.Tensor | None, num_heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the greatest score and the sum of weights before the first key, [H, QUERIES, 1]."""
    if sinks is None:
        return torch.full((num_heads, QUERIES, 1), -torch.inf), torch.zeros(num_heads, QUERIES, 1)
    return sinks.float()[:, None, None].repeat(1, QUERIES, 1), torch.ones(num_heads, QUERIES, 1)


def _find_first_key(tile: Tile, window: Window | None) -> int:
    """Return a key before which no token of the tile sees any."""
    if window is None:
        return 0
    places = np.arange(tile.first + tile.offset, tile.first + tile.offset + tile.stop - tile.start)
    return max(0, min(int(find_first_seen(window, places).min()), int(tile.runs[0].min())))


def _change(found: torch.Tensor, first_key: int, row: FixedRow, tile: Tile, scores: Scores) -> torch.Tensor:
    """Scale products [H, QUERIES, KEYS], which may be changed, add biases, and hide keys that a query does not see."""
    found = found.mul_(scores.scale)
    if scores.soft_cap is not None:
        found = found.div_(scores.soft_cap).tanh_().mul_(scores.soft_cap)
    keys = torch.arange(first_key, first_key + KEYS)
    places = torch.arange(tile.first, tile.first + QUERIES)[:, None]
    if scores.slopes is not None:
        found = found + find_bias(scores.slopes[:, None], keys, places, scores.scale)
    kind = tile.start, first_key, scores.window
    hidden = row.masks.get(kind)
    if hidden is None:
        hidden = keys > tile.runs[1]
        if scores.window is not None:
            hidden = hidden | ((keys < find_first_seen(scores.window, places)) & (keys < tile.runs[0]))
        row.masks[kind] = hidden
    return found.masked_fill_(hidden, -torch.inf)

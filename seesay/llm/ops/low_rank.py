"""Products of low rank that are added to the output of a linear layer: the factors in their slots, and which tokens
have those of which slot. Knows nothing of adapters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from seesay.device.transfers import upload

SMALL_TILE, LARGE_TILE = 16, 32
"""Tokens of one slot that are computed together: large tiles where there are many."""
_MANY_TOKENS = 512
_MOST_GROUPED, _MOST_FILLING = 128, 2
"""Tokens of several slots, with filling, that torch computes at once rather than one slot after another: at most so
many, and at most so many times as many as without filling."""
SPAN = 512
"""Most outputs that a program of a kernel computes."""


class SlotRun(NamedTuple):
    """Tokens of one slot: those at the places start … stop - 1 of `SlotRows.tokens`."""

    slot: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRows:
    """The tokens that have the factors of some slot, and behind them all others.

    tokens: int32 [N], those of one slot beside each other. tiles: int32 [M, 3]: a slot, -1 for no factors, the first
    of its tokens and their number, at most `tile_rows`; 0: none. runs: those of slots, on the host; None where only
    the device knows (see `DecodeRows`).
    """

    tokens: torch.Tensor
    tiles: torch.Tensor
    tile_rows: int
    runs: tuple[SlotRun, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFactors:
    """The factors of a layer whose outputs come from several sources, each with an A of its own.

    a: [slots, sources · R, in], b: [slots, R, out], for ranks up to R. ranks: int32 [slots, sources], 0: the slot adds
    nothing to this source; host_ranks: the same on the host. bounds: the first output of each source, and the number of
    outputs; outputs: those of the sources as tensors.
    """

    a: torch.Tensor
    b: torch.Tensor
    ranks: torch.Tensor
    host_ranks: npt.NDArray[np.int32]
    bounds: tuple[int, ...]
    outputs: SlotOutputs


class SlotOutputs(NamedTuple):
    """The outputs of sources on the device.

    spans: int32 [S, 3]: at most `SPAN` outputs of one source and one half of all: the source, the first, and the one
    behind the last.
    has_halves: whether both halves have spans alike, so that the gate of a gated layer is computed span by span.
    is_aligned: whether spans begin and end at multiples of 16.
    """

    spans: torch.Tensor
    has_halves: bool
    is_aligned: bool

    @classmethod
    def make(cls, bounds: tuple[int, ...], device: torch.device) -> SlotOutputs:
        """Return those of sources with these bounds (see `SlotFactors`)."""
        half = bounds[-1] // 2
        spans = [
            (source, start, min(start + SPAN, stop))
            for source, (first, last) in enumerate(pairwise(bounds))
            for begin, stop in ((first, min(last, half)), (max(first, half), last))
            for start in range(begin, stop, SPAN)
        ]
        numbers = np.array(spans, dtype=np.int32)
        first, second = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
        moved = first + np.array([(len(bounds) - 1) // 2, half, half])
        has_halves = not bounds[-1] % 2 and np.array_equal(moved, second)
        [there] = upload([numbers], device)
        return cls(there, has_halves, is_aligned=not (numbers[:, 1:] % 16).any())


class SlotTiles(NamedTuple):
    """`SlotRows` as arrays on the host."""

    tokens: npt.NDArray[np.int32]
    tiles: npt.NDArray[np.int32]
    tile_rows: int
    runs: tuple[SlotRun, ...]


def sort_by_slot(slots: npt.NDArray[np.int64], *, tile_rows: int | None = None) -> SlotTiles:
    """Return the tokens of each slot, for slots int64 [T]; -1: none. tile_rows: by default as many as are fast."""
    order = np.argsort(slots, kind="stable")
    order = np.roll(order, -np.count_nonzero(slots < 0))
    if tile_rows is None:
        tile_rows = SMALL_TILE if len(order) < _MANY_TOKENS else LARGE_TILE
    ordered = slots[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-2))
    stops = np.append(starts[1:], len(order))
    runs = tuple(map(SlotRun, ordered[starts].tolist(), starts.tolist(), stops.tolist()))
    tiles = [
        (run.slot, first, min(tile_rows, run.stop - first))
        for run in runs
        for first in range(run.start, run.stop, tile_rows)
    ]
    runs = runs if not runs or runs[-1].slot >= 0 else runs[:-1]
    return SlotTiles(order.astype(np.int32), np.array(tiles, dtype=np.int32).reshape(-1, 3), tile_rows, runs)


def count_tiles(num_tokens: int, num_slots: int, tile_rows: int = SMALL_TILE) -> int:
    """Return the most tiles that so many tokens fill, those of no slot among them."""
    return min(num_tokens, num_slots + 1 + num_tokens // tile_rows)


def add_low_rank(y: torch.Tensor, x: torch.Tensor, rows: SlotRows, factors: SlotFactors) -> None:
    """Do `LowRankOps.add` with operations of torch."""
    runs = rows.runs
    if runs is None:
        tiles = rows.tiles.tolist()
        runs = tuple(SlotRun(slot, first, first + count) for slot, first, count in tiles if count and slot >= 0)
    groups = _group(runs, y.device)
    if groups is not None and _have_equal_ranks(factors.host_ranks[groups.slots]):
        _add_groups(y, x, rows.tokens[: runs[-1].stop], groups, factors)
        return
    max_rank = factors.b.shape[1]
    for slot, start, stop in runs:
        tokens = rows.tokens[start:stop]
        own = x.index_select(0, tokens)
        for source, rank in enumerate(factors.host_ranks[slot].tolist()):
            if rank:
                first = source * max_rank
                columns = slice(factors.bounds[source], factors.bounds[source + 1])
                made = own @ factors.a[slot, first : first + rank].t()
                y[:, columns].index_add_(0, tokens, made @ factors.b[slot, :rank, columns])


class _Groups(NamedTuple):
    """Runs of a few tokens of slots that lie beside each other, filled up to the same number of tokens. places: int64,
    of the tokens of all runs in `SlotRows.tokens`, and own: int64, those of them that are no filling; None where
    nothing is filled up."""

    slots: slice
    places: torch.Tensor | None
    own: torch.Tensor | None


@lru_cache(maxsize=64)
def _group(runs: tuple[SlotRun, ...], device: torch.device) -> _Groups | None:
    """Return the runs as groups that one operation computes; None where one run after another is faster."""
    counts = [run.stop - run.start for run in runs]
    most, first = max(counts, default=0), min((run.slot for run in runs), default=0)
    is_dense = [run.slot for run in runs] == [*range(first, first + len(runs))]
    num_filled = most * len(runs)
    if len(runs) < 2 or not is_dense or num_filled > min(_MOST_GROUPED, _MOST_FILLING * sum(counts)):
        return None
    slots, within = slice(first, first + len(runs)), np.arange(most)
    if min(counts) == most:
        return _Groups(slots, None, None)
    places = np.concatenate([run.start + np.minimum(within, run.stop - run.start - 1) for run in runs])
    own = np.flatnonzero(np.concatenate([within < count for count in counts]))
    return _Groups(slots, torch.from_numpy(places).to(device), torch.from_numpy(own).to(device))


def _have_equal_ranks(ranks: npt.NDArray[np.int32]) -> bool:
    return bool((ranks == ranks[0]).all())


def _add_groups(y: torch.Tensor, x: torch.Tensor, tokens: torch.Tensor, groups: _Groups, factors: SlotFactors) -> None:
    """Add B A x of the tokens int32 [N], in the order of their runs. In all slots a source has the same rank."""
    a, b, max_rank = factors.a[groups.slots], factors.b[groups.slots], factors.b.shape[1]
    filled = tokens if groups.places is None else tokens.index_select(0, groups.places)
    own = x.index_select(0, filled).view(len(a), -1, x.shape[1])
    for source, rank in enumerate(factors.host_ranks[groups.slots.start].tolist()):
        if rank:
            first, columns = source * max_rank, slice(factors.bounds[source], factors.bounds[source + 1])
            made = torch.bmm(own, a[:, first : first + rank].transpose(1, 2))
            added = torch.bmm(made, b[:, :rank, columns]).flatten(0, 1)
            y[:, columns].index_add_(0, tokens, added if groups.own is None else added.index_select(0, groups.own))

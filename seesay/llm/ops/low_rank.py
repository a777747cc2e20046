"""Products of low rank that are added to the output of a linear layer: the factors in their slots, and which tokens
have those of which slot. Knows nothing of adapters."""

from __future__ import annotations

from collections.abc import Iterator
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
_MANY_ROWS = 32
"""Tokens of a slot for which torch multiplies the components of each source with its own outputs alone: for fewer, one
operation with zeros is faster."""
_MOST_GROUPED, _MOST_FILLING = 128, 2
"""Tokens of several slots, with filling, that torch computes at once rather than one slot after another: at most so
many, and at most so many times as many as without filling."""
SPAN = 512
"""Most outputs that a program of a kernel computes."""


class SlotRun(NamedTuple):
    """Tokens of one slot: those at the places start … stop - 1 of `SlotRows.tokens`. first: the first of them where
    they lie beside each other in their order; None where they do not, or nobody knows."""

    slot: int
    start: int
    stop: int
    first: int | None = None


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
    outputs; outputs: those of the sources as tensors. joined: the same factors for torch; None where kernels add them.
    """

    a: torch.Tensor
    b: torch.Tensor
    ranks: torch.Tensor
    host_ranks: npt.NDArray[np.int32]
    bounds: tuple[int, ...]
    outputs: SlotOutputs
    joined: JoinedFactors | None = None


class JoinedFactors:
    """The factors of all sources as one product, which torch computes in fewer and larger operations. In a slot that
    was taken, room that no factor fills holds zeros.

    a: a view [slots, in, sources · R] of `SlotFactors.a`; b: [slots, sources · R, out], with zeros where an output is
    of another source, and a view where there is one.
    """

    def __init__(self, a: torch.Tensor, b: torch.Tensor, bounds: tuple[int, ...]) -> None:
        self.a, self._stored, self._bounds = a.transpose(1, 2), b, bounds
        self.b = b if len(bounds) == 2 else b.new_zeros(len(b), a.shape[1], bounds[-1])
        self._is_filled = [False] * len(a)

    @property
    def num_sources(self) -> int:
        return len(self._bounds) - 1

    def take(self, slot: int, ranks: npt.NDArray[np.int32]) -> None:
        """Take what is stored in a slot now, for the ranks of its sources."""
        max_rank = self._stored.shape[1]
        self._is_filled[slot] = 2 * int(ranks.max()) >= max_rank
        if self.b is not self._stored:
            for source, columns in enumerate(map(slice, self._bounds, self._bounds[1:])):
                own = self.b[slot, source * max_rank : (source + 1) * max_rank]
                own[:, columns] = self._stored[slot, :, columns]

    def split(self, slot: int) -> Iterator[tuple[slice, slice, torch.Tensor]]:
        """Yield the components of each source, its outputs, and its part of b."""
        max_rank = self._stored.shape[1]
        for source, columns in enumerate(map(slice, self._bounds, self._bounds[1:])):
            yield slice(source * max_rank, (source + 1) * max_rank), columns, self._stored[slot, :, columns]

    def are_filled(self, slots: slice) -> bool:
        """Return whether factors fill most of the room of these slots, so that no time is lost with zeros."""
        return all(self._is_filled[slots])

    def free(self) -> None:
        """Free memory that is no view. `restore` comes before anything is taken again."""
        if self.b is not self._stored:
            self.b.untyped_storage().resize_(0)

    def restore(self) -> None:
        """Allocate what `free` has freed, with zeros. Raises `torch.OutOfMemoryError`."""
        if self.b is not self._stored:
            self.b.untyped_storage().resize_(self.b.numel() * self.b.itemsize)
            self.b.zero_()


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
    stops = np.append(starts[1:], len(order))[: len(starts)]
    firsts = order[starts]
    is_one_span = order[stops - 1] - firsts == stops - 1 - starts
    columns = (ordered[starts], starts, stops, np.where(is_one_span, firsts, -1))
    runs = tuple(
        SlotRun(slot, start, stop, first if first >= 0 else None)
        for slot, start, stop, first in zip(*(column.tolist() for column in columns), strict=True)
    )
    tiles = [
        (run.slot, first, min(tile_rows, run.stop - first))
        for run in runs
        for first in range(run.start, run.stop, tile_rows)
    ]
    runs = runs if not runs or runs[-1].slot >= 0 else runs[:-1]
    return SlotTiles(order.astype(np.int32), np.array(tiles, dtype=np.int32).reshape(-1, 3), tile_rows, runs)


def sort_there(slots: torch.Tensor, num_slots: int, *, tile_rows: int = SMALL_TILE) -> SlotRows:
    """Return the tokens of each slot, for slots int64 [T]; -1: none. All is computed on their device, which the host
    does not wait for."""
    device = slots.device
    numbers = torch.where(slots < 0, num_slots, slots)  # those of no slot are last
    counts = torch.zeros(num_slots + 1, dtype=torch.int64, device=device)
    counts.scatter_add_(0, numbers, torch.ones_like(numbers))
    starts, num_tiles = counts.cumsum(0) - counts, (counts + tile_rows - 1) // tile_rows
    stops = num_tiles.cumsum(0)
    index = torch.arange(count_tiles(len(slots), num_slots, tile_rows), device=device)
    own = torch.searchsorted(stops, index, right=True)  # num_slots + 1: there is no such tile
    is_there, own = own <= num_slots, own.clamp(max=num_slots)
    done = (index - (stops - num_tiles)[own]) * tile_rows
    tiles = torch.stack(
        (
            torch.where(own < num_slots, own, -1),
            starts[own] + done,
            torch.where(is_there, (counts[own] - done).clamp(max=tile_rows), 0),
        ),
        dim=1,
    )
    return SlotRows(tokens=numbers.argsort(stable=True).int(), tiles=tiles.int(), tile_rows=tile_rows)


def count_tiles(num_tokens: int, num_slots: int, tile_rows: int = SMALL_TILE) -> int:
    """Return the most tiles that so many tokens fill, those of no slot among them."""
    return min(num_tokens, num_slots + 1 + num_tokens // tile_rows)


def add_low_rank(y: torch.Tensor, x: torch.Tensor, rows: SlotRows, factors: SlotFactors) -> None:
    """Do `LowRankOps.add` with operations of torch."""
    runs, joined = _find_runs(rows), factors.joined
    if joined is None:
        for run in runs:
            _add_sources(y, x, rows.tokens[run.start : run.stop], run.slot, factors)
        return
    groups = _group(runs, y.device)
    if groups is not None and joined.are_filled(groups.slots):
        _add_groups(y, x, rows.tokens[: runs[-1].stop], groups, joined)
        return
    for run in runs:
        if joined.are_filled(slice(run.slot, run.slot + 1)):
            _add_run(y, x, rows.tokens, run, joined)
        else:
            _add_sources(y, x, rows.tokens[run.start : run.stop], run.slot, factors)


def _find_runs(rows: SlotRows) -> tuple[SlotRun, ...]:
    if rows.runs is not None:
        return rows.runs
    tiles = rows.tiles.tolist()
    return tuple(SlotRun(slot, first, first + count) for slot, first, count in tiles if count and slot >= 0)


def _add_sources(y: torch.Tensor, x: torch.Tensor, tokens: torch.Tensor, slot: int, factors: SlotFactors) -> None:
    """Add B A x of the tokens of a slot, one source after another."""
    max_rank, own = factors.b.shape[1], x.index_select(0, tokens)
    for source, rank in enumerate(factors.host_ranks[slot].tolist()):
        if rank:
            first, columns = source * max_rank, slice(factors.bounds[source], factors.bounds[source + 1])
            made = own @ factors.a[slot, first : first + rank].t()
            y[:, columns].index_add_(0, tokens, made @ factors.b[slot, :rank, columns])


def _add_run(y: torch.Tensor, x: torch.Tensor, tokens: torch.Tensor, run: SlotRun, joined: JoinedFactors) -> None:
    """Add B A x of the tokens of a run."""
    a, b, count = joined.a[run.slot], joined.b[run.slot], run.stop - run.start
    if run.first is None:
        own = tokens[run.start : run.stop]
        y.index_add_(0, own, x.index_select(0, own) @ a @ b)
    elif count >= _MANY_ROWS and joined.num_sources > 1:
        made, target = x.narrow(0, run.first, count) @ a, y.narrow(0, run.first, count)
        for components, columns, own_b in joined.split(run.slot):
            target[:, columns].addmm_(made[:, components], own_b)
    elif count == len(y):
        y.addmm_(x @ a, b)
    else:
        y.narrow(0, run.first, count).addmm_(x.narrow(0, run.first, count) @ a, b)


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


def _add_groups(y: torch.Tensor, x: torch.Tensor, tokens: torch.Tensor, groups: _Groups, joined: JoinedFactors) -> None:
    """Add B A x of the tokens int32 [N], in the order of their runs."""
    a, b = joined.a[groups.slots], joined.b[groups.slots]
    filled = tokens if groups.places is None else tokens.index_select(0, groups.places)
    own = x.index_select(0, filled).view(len(a), -1, x.shape[1])
    added = torch.bmm(torch.bmm(own, a), b).flatten(0, 1)
    y.index_add_(0, tokens, added if groups.own is None else added.index_select(0, groups.own))

"""How the tokens of a step lie for layers with a state: which inputs a short convolution takes, and in which chunks a
recurrence goes through rows. Made once per step, on the host; layers share it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from seesay.device.transfers import upload
from seesay.llm.ops.interface import DecodeRows, RowLayout

CHUNK = 64
"""Tokens of a chunk: within one, a recurrence is computed as products of matrices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taps:
    """Of a convolution over K tokens, where inputs are among B · (K - 1) old ones and behind them T new ones: taps
    int64 [K · T], those of each token, and tails int64 [B · (K - 1)], the last ones of each row."""

    taps: torch.Tensor
    tails: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """Rows of more than one token in chunks: first the first ones of all rows, then the second ones of those that have
    any, and so on; rows with the most come first.

    tokens int64 [N · CHUNK]: those of each chunk, and the number of all tokens where a chunk is not full. places int64
    [L]: where the L tokens of these rows are among those of all chunks. slots int64 [R]: the rows' states. counts: how
    many rows have a first chunk, a second one, …
    """

    tokens: torch.Tensor
    places: torch.Tensor
    slots: torch.Tensor
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePlan:
    """slots int64 [B]: where the states of the rows are. num_decode: the first rows, which have one token each. taps,
    chunks, and bounds int64 [B + 1], where the tokens of each row begin: None where all rows have one."""

    slots: torch.Tensor
    num_decode: int
    taps: Taps | None = None
    chunks: Chunks | None = None
    bounds: torch.Tensor | None = None


def make_state_plan(
    layout: RowLayout | DecodeRows, slots: torch.Tensor, *, num_taps: int, device: torch.device
) -> StatePlan:
    """Return the plan of a step. num_taps: tokens that a convolution goes over."""
    if isinstance(layout, DecodeRows) or layout.num_decode == len(layout.kv_lens):
        return StatePlan(slots=slots, num_decode=len(layout.kv_lens))
    bounds, num_decode = layout.cu_seqlens_q.astype(np.int64), layout.num_decode
    taps, tails = _find_taps(bounds, num_taps - 1)
    order, counts, tokens, places = _find_chunks(bounds, num_decode)
    there = upload([taps.reshape(-1), tails.reshape(-1), order, tokens.reshape(-1), places, bounds], device)
    chunks = Chunks(tokens=there[3], places=there[4], slots=slots.index_select(0, there[2]), counts=counts)
    own_taps = Taps(taps=there[0], tails=there[1])
    return StatePlan(slots=slots, num_decode=num_decode, taps=own_taps, chunks=chunks, bounds=there[5])


_Ints = npt.NDArray[np.int64]


def _find_taps(bounds: _Ints, num_old: int) -> tuple[_Ints, _Ints]:
    """Return the taps [num_old + 1, T] and tails [B, num_old] of rows with the tokens bounds[b] … bounds[b + 1] - 1."""
    counts = np.diff(bounds)
    rows = np.repeat(np.arange(len(counts)), counts)
    tokens = np.arange(bounds[-1])
    within = tokens - bounds[rows]
    behind = np.arange(-num_old, 1)[:, None]
    first_new = len(counts) * num_old
    taps = np.where(within + behind < 0, rows * num_old + num_old + within + behind, first_new + tokens + behind)
    last = np.arange(-num_old, 0)[None]
    is_old = counts[:, None] + last < 0
    kept = np.arange(len(counts))[:, None] * num_old + num_old + counts[:, None] + last
    return taps, np.where(is_old, kept, first_new + bounds[1:, None] + last)


def _find_chunks(bounds: _Ints, num_decode: int) -> tuple[_Ints, tuple[int, ...], _Ints, _Ints]:
    """Return the rows behind the first `num_decode` in the order of `Chunks`, its counts, its tokens [N, CHUNK] and its
    places."""
    lengths = np.diff(bounds)[num_decode:]
    num_chunks = -(-lengths // CHUNK)
    order = np.argsort(-num_chunks, kind="stable")
    sorted_chunks = num_chunks[order]
    counts = tuple(int((sorted_chunks > step).sum()) for step in range(int(sorted_chunks[0])))
    rows = np.concatenate([order[:count] for count in counts])
    steps = np.repeat(np.arange(len(counts)), counts)
    within = steps[:, None] * CHUNK + np.arange(CHUNK)
    is_there = within < lengths[rows][:, None]
    tokens = np.where(is_there, bounds[num_decode + rows][:, None] + within, bounds[-1])
    places = np.empty(int(lengths.sum()), dtype=np.int64)
    places[tokens[is_there] - bounds[num_decode]] = np.flatnonzero(is_there.reshape(-1))
    return order + num_decode, counts, tokens, places

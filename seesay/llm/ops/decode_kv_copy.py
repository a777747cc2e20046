"""Decode rows' keys and values laid out row by row, kept from one step to the next: a step then copies one token per
row instead of the whole context.

A copy holds only what the paged cache holds, and is used only by the step right after the one that made or extended
it, for the same rows in the same blocks, each one token longer, none of which sees the newest token of another, as rows
of proposed tokens do. Any other step makes a new one. Block numbers do not say what a block contains: code that writes
to blocks in between (loads from the host do) must call `drop`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.ops.interface import RowLayout
from seesay.llm.ops.kv_codec import read_blocks, read_tokens
from seesay.llm.plans.window import Window, find_first_seen

MAX_KEPT_TOKENS = 1 << 13
"""Most places for tokens (rows times the longest) in the copies; beyond, rows are gathered in every step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextStep:
    """The decode rows of step number `number`, which one token follows in each: B rows of M blocks.

    follows: whether step number - 1 had the same rows, one token shorter. blocks: int64 [B · M]. last_rows and
    last_places int64 [B]: where each row's newest token goes in a copy; last_slots int64 [B]: its slot in the cache.
    masks: additive, [B, 1, 1, longest] by window.
    """

    number: int
    follows: bool
    capacity: int
    longest: int
    blocks: torch.Tensor
    last_rows: torch.Tensor
    last_places: torch.Tensor
    last_slots: torch.Tensor
    masks: dict[Window | None, torch.Tensor]
    biases: dict[tuple[Window | None, int], torch.Tensor] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return len(self.last_rows)

    def bias(self, window: Window | None, num_kv_heads: int) -> torch.Tensor:
        """The mask as [B · G, 1, longest] for G key-value heads: made once per step."""
        bias = self.biases.get((window, num_kv_heads))
        if bias is None:
            bias = self.masks[window].expand(-1, num_kv_heads, -1, -1).reshape(-1, 1, self.longest)
            self.biases[window, num_kv_heads] = bias
        return bias


@dataclass(slots=True)
class _Copy:
    """`pairs` [2, B, G, capacity, D] of the layer whose cache is `cache`, complete for step `number`."""

    cache: LayerCache
    pairs: torch.Tensor
    number: int


class DecodeKVCopy:
    """The copies of one decoder's layers. On the CPU, float32."""

    def __init__(self) -> None:
        self._number = 0
        self._kv_lens: npt.NDArray[np.int64] | None = None
        self._table: npt.NDArray[np.int64] | None = None
        self._capacity = 0
        self._copies: dict[int, _Copy] = {}

    def begin_step(self, layout: RowLayout, windows: frozenset[Window | None]) -> ContextStep | None:
        """Take the next step's layout; None when it has no decode rows or too large ones. Must see every step."""
        count, size = layout.num_decode, layout.block_size
        kv_lens = layout.kv_lens[:count]
        longest = int(kv_lens.max(initial=0))
        table = layout.block_table[:count, : -(-longest // size)]
        self._number += 1
        if not 0 < count * (table.shape[1] + 1) * size <= MAX_KEPT_TOKENS:
            self.drop()
            return None
        rows, places = np.arange(count), kv_lens - 1
        newest = table[rows, places // size]
        follows = longest <= self._capacity and self._is_next(kv_lens, table, size)
        follows = follows and not _sees_others(kv_lens, table, size, newest)
        if not follows:
            self._copies.clear()
            self._capacity = (table.shape[1] + 1) * size
        self._kv_lens, self._table = kv_lens, table
        return ContextStep(
            number=self._number,
            follows=follows,
            capacity=self._capacity,
            longest=longest,
            blocks=torch.from_numpy(np.ascontiguousarray(table).reshape(-1)),
            last_rows=torch.from_numpy(rows),
            last_places=torch.from_numpy(places),
            last_slots=torch.from_numpy(newest * size + places % size),
            masks={window: _make_mask(kv_lens, longest, window) for window in windows},
        )

    def drop(self) -> None:
        """Let the next step gather everything anew."""
        self._kv_lens = self._table = None
        self._copies.clear()

    def _is_next(self, kv_lens: npt.NDArray[np.int64], table: npt.NDArray[np.int64], size: int) -> bool:
        """Whether these are the rows of the step before, one token longer each."""
        if self._kv_lens is None or self._table is None or not np.array_equal(self._kv_lens + 1, kv_lens):
            return False
        width = self._table.shape[1]
        is_unused = np.arange(width) >= -(-self._kv_lens // size)[:, None]
        return bool((is_unused | (self._table == table[:, :width])).all())

    def read(self, cache: LayerCache, step: ContextStep) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the rows, [B · G, longest, D] each, with this step's tokens, which `cache` has already.

        What is behind a row's end is finite, unless its own blocks hold something else there.
        """
        kept = self._copies.get(id(cache))
        if step.follows and kept is not None and kept.cache is cache and kept.number == step.number - 1:
            newest = read_tokens(cache, step.last_slots, torch.float32)
            kept.pairs[:, step.last_rows, :, step.last_places] = newest
            kept.number = step.number
        else:
            kept = _Copy(cache, _gather(cache, step), step.number)
            self._copies[id(cache)] = kept
        keys, values = kept.pairs.flatten(1, 2)[:, :, : step.longest].unbind(0)
        return keys, values


def _sees_others(
    kv_lens: npt.NDArray[np.int64], table: npt.NDArray[np.int64], size: int, newest: npt.NDArray[np.int64]
) -> bool:
    """Whether a row has a block with the newest token of another; `newest`: those blocks of all rows."""
    is_used = np.arange(table.shape[1]) < -(-kv_lens // size)[:, None]
    return int((is_used & np.isin(table, newest)).sum()) > len(np.unique(newest))


def _gather(cache: LayerCache, step: ContextStep) -> torch.Tensor:
    num_kv_heads, head_dim = cache.layout.num_kv_heads, cache.layout.head_dim
    gathered = read_blocks(cache, step.blocks, torch.float32).view(step.num_rows, -1, 2, num_kv_heads, head_dim)
    pairs = gathered.new_zeros(2, step.num_rows, num_kv_heads, step.capacity, head_dim)
    pairs[:, :, :, : gathered.shape[1]] = gathered.permute(2, 0, 3, 1, 4)
    return pairs


def _make_mask(kv_lens: npt.NDArray[np.int64], longest: int, window: Window | None) -> torch.Tensor:
    slots = np.arange(longest)
    visible = slots < kv_lens[:, None]
    if window is not None:
        visible &= slots >= find_first_seen(window, kv_lens - 1)[:, None]
    return torch.from_numpy(np.where(visible, np.float32(0), np.float32(-np.inf))[:, None, None])

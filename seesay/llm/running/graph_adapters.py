"""Which rows of a decode step have which adapter, in tensors that a CUDA graph reads."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from seesay.device.transfers import upload
from seesay.llm.ops import SlotRows
from seesay.llm.ops.low_rank import SMALL_TILE, count_tiles, sort_by_slot


class GraphAdapters:
    """`SlotRows` of up to `num_rows` rows, whose tensors stay at their addresses. The host sends what changed since the
    last step: nothing, for a step with the same rows."""

    def __init__(self, *, num_rows: int, num_slots: int, device: torch.device) -> None:
        self._num_slots, self._device = num_slots, device
        num_tiles = count_tiles(num_rows, num_slots)
        self._tokens = torch.zeros(num_rows, dtype=torch.int32, device=device)
        self._tiles = torch.zeros(num_tiles, 3, dtype=torch.int32, device=device)
        self._sent_tokens = np.zeros(num_rows, dtype=np.int32)
        self._sent_tiles = np.zeros((num_tiles, 3), dtype=np.int32)

    def rows(self, size: int) -> SlotRows:
        """Return the rows of a graph of so many."""
        tiles = self._tiles[: count_tiles(size, self._num_slots)]
        return SlotRows(tokens=self._tokens[:size], tiles=tiles, tile_rows=SMALL_TILE)

    def send(self, slots: npt.NDArray[np.int64], *, size: int) -> None:
        """Let the rows of the next graph, of `size` rows, have the adapters in `slots` int64 [R]; -1: none, as all
        behind them."""
        found = sort_by_slot(np.pad(slots, (0, size - len(slots)), constant_values=-1), tile_rows=SMALL_TILE)
        tokens = found.tokens
        tiles = np.zeros((count_tiles(size, self._num_slots), 3), dtype=np.int32)
        tiles[: len(found.tiles)] = found.tiles
        sent = self._sent_tokens[:size], self._sent_tiles[: len(tiles)]
        if np.array_equal(sent[0], tokens) and np.array_equal(sent[1], tiles):
            return
        there = upload([tokens, tiles], self._device)
        self._tokens[:size].copy_(there[0])
        self._tiles[: len(tiles)].copy_(there[1])
        sent[0][:], sent[1][:] = tokens, tiles

"""Magnitudes of adapters (DoRA, Liu et al. 2024): where a linear layer computes x Wᵀ + b, and an adapter adds
x (B A)ᵀ, the sum x (W + B A)ᵀ is multiplied by m / |W + B A|, with a magnitude m and the length of the row of each
output.

For the tokens of such adapters this sum is computed once more, and what is missing is added to the output, whatever
else has been added to that. Other tokens are computed as without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from seesay.device.linear.linear import Linear
from seesay.device.linear.low_rank_parts import make_gain, measure_squares
from seesay.device.transfers import upload
from seesay.llm.ops import Ops, SlotFactors, SlotRows
from seesay.llm.ops.low_rank import SlotRun, sort_by_slot

_MAX_ROWS = 1024
"""Rows whose sums are computed together, which bounds the memory that they take."""


class _Piece(NamedTuple):
    """Some tokens of one adapter, int64 [n], and as rows of a matrix of their own."""

    adapter_id: int
    tokens: torch.Tensor
    rows: SlotRows


class Magnitudes:
    """The magnitudes of a decoder's adapters, by their ids. in_slot: the ids of adapters, by their slots; it may change
    from step to step. sum_ranks: sums a tensor over all ranks.

    Lengths are measured when a layer first computes with an adapter.
    """

    def __init__(
        self,
        ops: Ops,
        in_slot: Mapping[int, int],
        *,
        sum_ranks: Callable[[torch.Tensor], torch.Tensor],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._ops, self._in_slot, self._sum_ranks = ops, in_slot, sum_ranks
        self._device, self._dtype = device, dtype
        self._there: dict[int, Mapping[str, torch.Tensor]] = {}
        self._gains: dict[tuple[int, str], torch.Tensor] = {}
        self._pieces: tuple[_Piece, ...] = ()

    def add(self, adapter_id: int, magnitudes: Mapping[str, torch.Tensor]) -> None:
        """Take those of an adapter, by the paths of layers: float32 [out]; NaN: this output has none."""
        self._there[adapter_id] = magnitudes

    def drop(self, adapter_id: int) -> None:
        """Forget an adapter, of which no sequence is alive."""
        self._there.pop(adapter_id, None)
        self._gains = {key: gain for key, gain in self._gains.items() if key[0] != adapter_id}

    def measure_again(self) -> None:
        """Forget all lengths, as the weights have changed."""
        self._gains.clear()

    def are_used(self, slots: npt.NDArray[np.int64] | None) -> bool:
        """Return whether the adapter in any of these slots has magnitudes."""
        if not self._there or slots is None:
            return False
        return any(self._in_slot.get(slot) in self._there for slot in np.unique(slots).tolist())

    def begin(self, rows: SlotRows | None) -> bool:
        """Let the layers compute a step whose `rows` have adapters. Returns whether any of these has magnitudes."""
        self._pieces = tuple(self._cut(rows)) if self._there and rows is not None else ()
        return bool(self._pieces)

    def _cut(self, rows: SlotRows) -> Iterator[_Piece]:
        for slot, start, stop, _ in rows.runs or ():  # those of a graph have none
            adapter_id = self._in_slot.get(slot, 0)
            for first in range(start, stop, _MAX_ROWS) if adapter_id in self._there else ():
                tokens = rows.tokens[first : min(first + _MAX_ROWS, stop)].long()
                yield _Piece(adapter_id, tokens, self._make_rows(slot, len(tokens)))

    def _make_rows(self, slot: int, count: int) -> SlotRows:
        found = sort_by_slot(np.full(count, slot, dtype=np.int64))
        tokens, tiles = upload([found.tokens, found.tiles], self._device)
        return SlotRows(tokens=tokens, tiles=tiles, tile_rows=found.tile_rows, runs=(SlotRun(slot, 0, count, 0),))

    def scale(self, path: str, linear: Linear, factors: SlotFactors, x: torch.Tensor, y: torch.Tensor) -> None:
        """Multiply what the layer at `path` and the factors of adapters have added to y [N, out] for x [N, in], in
        place, in the rows of adapters with magnitudes."""
        for adapter_id, tokens, rows in self._pieces:
            if path not in self._there[adapter_id]:
                continue
            gain = self._gains.get((adapter_id, path))
            if gain is None:
                [run] = rows.runs or ()
                magnitude = self._there[adapter_id][path].to(self._device)
                gain = make_gain(magnitude, self._measure(linear, factors, run.slot))
                self._gains[adapter_id, path] = gain
            missing = self._multiply(linear, factors, x.index_select(0, tokens), rows).mul_(gain)
            y.index_copy_(0, tokens, y.index_select(0, tokens).add_(missing))

    def _multiply(self, linear: Linear, factors: SlotFactors, x: torch.Tensor, rows: SlotRows) -> torch.Tensor:
        """Return x (W + B A)ᵀ, with the factors of all rows."""
        y = linear.multiply(x)
        self._ops.low_rank.add(y, x, rows, factors)
        return y

    def _measure(self, linear: Linear, factors: SlotFactors, slot: int) -> torch.Tensor:
        """Return the square of the length of each row of W + B A, float32 [out]."""

        def multiply(x: torch.Tensor) -> torch.Tensor:
            return self._multiply(linear, factors, x, self._make_rows(slot, len(x)))

        squares = measure_squares(multiply, linear.in_features, device=self._device, dtype=self._dtype)
        return squares if linear.inputs is None else self._sum_ranks(squares[:, None]).flatten()

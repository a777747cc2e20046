"""Products of low rank in Triton."""

from __future__ import annotations

import torch

from seesay.kernels import low_rank
from seesay.kernels.low_rank import SlotProducts
from seesay.llm.ops.interface import Activation
from seesay.llm.ops.low_rank import SPAN, SlotFactors, SlotRows


class TritonLowRank:
    """See `LowRankOps` for what each does."""

    def add(self, y: torch.Tensor, x: torch.Tensor, rows: SlotRows, factors: SlotFactors) -> None:
        low_rank.add_low_rank(y, x, self.find_products(rows, factors))

    def add_and_gate(
        self, y: torch.Tensor, x: torch.Tensor, rows: SlotRows, factors: SlotFactors, activation: Activation
    ) -> torch.Tensor:
        return low_rank.add_and_gate(y, x, self.find_products(rows, factors), activation)

    def find_products(self, rows: SlotRows, factors: SlotFactors) -> SlotProducts:
        return SlotProducts(
            factors.a,
            factors.b,
            factors.ranks,
            factors.outputs.spans,
            rows.tokens,
            rows.tiles,
            rows.tile_rows,
            span=SPAN,
            is_aligned=factors.outputs.is_aligned,
        )

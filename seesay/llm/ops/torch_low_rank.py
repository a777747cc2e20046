"""Products of low rank with operations of torch."""

from __future__ import annotations

import torch

from seesay.llm.ops.activations import act_and_mul
from seesay.llm.ops.interface import Activation
from seesay.llm.ops.low_rank import SlotFactors, SlotRows, add_low_rank


class TorchLowRank:
    """See `LowRankOps` for what each does."""

    add = staticmethod(add_low_rank)

    def add_and_gate(
        self, y: torch.Tensor, x: torch.Tensor, rows: SlotRows, factors: SlotFactors, activation: Activation
    ) -> torch.Tensor:
        self.add(y, x, rows, factors)
        return act_and_mul(y, activation)

    def find_products(self, rows: SlotRows, factors: SlotFactors) -> None:
        """There are no such kernels."""

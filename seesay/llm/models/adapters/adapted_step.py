"""The additions of a decoder's layers for the adapters of a step's tokens."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

import torch

from seesay.device.linear.adapted import Adaptation
from seesay.llm.models.adapters.adapter_reader import Site
from seesay.llm.models.adapters.magnitudes import Magnitudes
from seesay.llm.ops import Activation, Ops, SlotFactors, SlotRows
from seesay.llm.ops.low_rank import sort_there

if TYPE_CHECKING:
    from seesay.kernels.low_rank import SlotProducts


class AdaptedStep:
    """The step that the layers compute. `begin` comes before each; layers are adapted once."""

    def __init__(self, ops: Ops, magnitudes: Magnitudes) -> None:
        self._ops, self._magnitudes = ops, magnitudes
        self._rows: SlotRows | None = None
        self._picked: SlotRows | None = None  # those that some layers compute alone
        self._has_magnitudes = False

    def begin(self, rows: SlotRows | None) -> None:
        """Let the layers compute a step whose `rows` have adapters."""
        self._rows, self._has_magnitudes = rows, self._magnitudes.begin(rows)
        self._picked = None

    def try_pick(self, wanted: torch.Tensor, num_slots: int) -> bool:
        """Let layers also compute the tokens `wanted` int64 [N] of the step alone. Returns whether they can."""
        rows = self._rows
        if rows is None:
            return True
        if rows.runs is None or self._has_magnitudes or len(wanted) >= len(rows.tokens):
            return False
        slots = torch.full((len(rows.tokens),), -1, dtype=torch.int64, device=wanted.device)
        for run in rows.runs:
            slots.index_fill_(0, rows.tokens[run.start : run.stop].long(), run.slot)
        self._picked = sort_there(slots.index_select(0, wanted), num_slots)
        return True

    def adapt(self, site: Site, factors: SlotFactors) -> Adaptation:
        """Return what a layer adds in each step, with the factors of its site."""
        return Adaptation(
            add=partial(self._add, site, factors),
            gate=partial(self._gate, site, factors) if factors.outputs.has_halves else None,
            find_products=partial(self._find_products, factors),
        )

    def _find_rows(self, x: torch.Tensor) -> SlotRows:
        """Return the rows of x, which has all tokens of the step, or those that were picked."""
        rows = self._rows
        if self._picked is not None and len(x) == len(self._picked.tokens):
            rows = self._picked
        assert rows is not None
        return rows

    def _add(self, site: Site, factors: SlotFactors, x: torch.Tensor, y: torch.Tensor) -> None:
        self._ops.low_rank.add(y, x, self._find_rows(x), factors)
        if self._has_magnitudes:
            self._magnitudes.scale(site.path, site.linear, factors, x, y)

    def _gate(
        self, site: Site, factors: SlotFactors, x: torch.Tensor, y: torch.Tensor, activation: str
    ) -> torch.Tensor:
        kind = cast(Activation, activation)
        if not self._has_magnitudes:
            return self._ops.low_rank.add_and_gate(y, x, self._find_rows(x), factors, kind)
        self._add(site, factors, x, y)
        return self._ops.act_and_mul(y, kind)

    def _find_products(self, factors: SlotFactors, x: torch.Tensor) -> SlotProducts | None:
        return None if self._has_magnitudes else self._ops.low_rank.find_products(self._find_rows(x), factors)

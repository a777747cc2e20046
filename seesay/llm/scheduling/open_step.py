"""A step while it is planned."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from seesay.llm.plans.step_plan import Row
from seesay.llm.scheduling.fair_shares import TokenShares


@dataclass(slots=True, kw_only=True)
class OpenStep:
    """The rows that a step has so far, and what it has room for.

    singles: rows of one token that running sequences may have yet. spare: tokens left for prompts. shares: how owners
    divide them. only: no sequences but these have rows, or begin; None for all. promised: blocks that running
    sequences still need for their known tokens. preempted: sequences that lost their blocks to others.
    """

    singles: int
    spare: int
    shares: TokenShares
    only: Container[int] | None = None
    promised: int = 0
    preempted: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

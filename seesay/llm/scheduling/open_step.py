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
    divide them. extra: tokens that only proposed ones may take; beyond these, they take those of prompts, and leave
    `kept` of them: a prompt goes on beside answers however much these propose. only: no sequences but these have rows,
    or begin; None for all. promised: blocks that running sequences still need for their known tokens. preempted:
    sequences that lost their blocks to others.
    """

    singles: int
    spare: int
    shares: TokenShares
    extra: int = 0
    kept: int = 0
    only: Container[int] | None = None
    promised: int = 0
    preempted: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @property
    def room_for_proposed(self) -> int:
        """Most tokens that may be proposed yet."""
        return self.extra + max(0, self.spare - self.kept)

    def spend_proposed(self, num_tokens: int) -> None:
        """Take so many proposed tokens."""
        from_extra = min(num_tokens, self.extra)
        self.extra -= from_extra
        self.spare -= num_tokens - from_extra

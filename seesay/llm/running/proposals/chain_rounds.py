"""Proposes the chains of a layer in the rounds of a step: see `ProposalRounds`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from seesay.device.transfers import upload

if TYPE_CHECKING:
    from seesay.llm.running.proposals.chain import MissingTokens, ProposalChain
    from seesay.llm.running.proposals.round_state import VerifiedTokens
    from seesay.llm.running.proposals.rounds import Counts
    from seesay.llm.running.step_input import StepRows


class ChainSource(Protocol):
    """Knows what a layer has computed of sequences."""

    def begin_rounds(self, seq_ids: Sequence[int]) -> MissingTokens | None:
        """Return what the layer lacks of these sequences; None if they are not those that it was asked to propose for.
        It lacks nothing then."""
        ...

    def end_rounds(self, seq_id: int, start: int, states: torch.Tensor) -> None:
        """The layer has computed all before place `start`, from which on there are the model's `states` [n, hidden]."""
        ...


class ChainProposer:
    """A `RoundProposer`. Each row has as many tokens in a round, those of `chain`, whose graph is made for them.
    `source` must be set before any step."""

    def __init__(self, chain: ProposalChain) -> None:
        self.source: ChainSource | None = None
        self._chain = chain
        self._owners = np.zeros(0, np.int64)
        self._num_tokens = 0
        self._chained: tuple[torch.Tensor, torch.Tensor] | None = None

    def count_proposed(self, num_rows: int) -> int:
        """See `RoundProposer`."""
        return self._chain.find_size(num_rows).num_proposed

    def begin(self, step: StepRows, most: Counts) -> Counts | None:
        """See `RoundProposer`."""
        num_rows = len(step.rows)
        num_proposed = self.count_proposed(num_rows)
        assert self.source is not None
        if (most < num_proposed).any() or not all(member.params.is_plain for member in step.members):
            return None
        missing = self.source.begin_rounds([row.seq_id for row in step.rows])
        if missing is None:
            return None
        self._chain.begin(missing)
        self._owners = np.fromiter((member.slot for member in missing.members), np.int64, count=num_rows)
        self._num_tokens, self._chained = len(missing.states), None
        return np.full(num_rows, num_proposed)

    def resume(self, step: StepRows) -> bool:
        """See `RoundProposer`."""
        assert self.source is not None
        return self.source.begin_rounds([row.seq_id for row in step.rows]) is not None

    def extend(self) -> None:
        """See `RoundProposer`."""
        if self._chained is not None:
            self._chain.lend_blocks(*self._chained)

    def propose(self) -> torch.Tensor:
        """See `RoundProposer`."""
        return self._chain.compute(len(self._owners), self._num_tokens).T

    def go_on(self, verified: VerifiedTokens) -> None:
        """See `RoundProposer`."""
        num_rows, width = verified.tokens.shape
        if self._chained is None:
            lent = self._chain.lend(self._owners, width - 1)
            owners, there = upload([self._owners, lent.copy()], verified.tokens.device)
            self._chained = owners, there
        self._num_tokens = num_rows * width
        self._chain.go_on(*self._chained, verified)

    def forget(self) -> None:
        """See `RoundProposer`."""
        self._chain.forget(self._owners)

    def settle(self, seq_id: int, start: int, states: torch.Tensor) -> None:
        """See `RoundProposer`."""
        assert self.source is not None
        self.source.end_rounds(seq_id, start, states)

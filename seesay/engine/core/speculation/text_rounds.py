"""Lets steps of the model propose from texts by themselves, round after round, while the host does not wait."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Sequence_
from typing import TYPE_CHECKING
from weakref import proxy

from seesay.llm.plans.step_plan import UNPROPOSED
from seesay.llm.running.proposals.ngram_rounds import ExpectedRow
from seesay.llm.scheduling.text_follower import find_least_rates

if TYPE_CHECKING:
    from seesay.llm.running.proposals.ngram_rounds import NgramProposer
    from seesay.llm.running.proposals.rounds import ProposalRounds
    from seesay.llm.scheduling.sequence import Sequence
    from seesay.llm.scheduling.text_follower import TextFollower


class TextRounds:
    """Has `rounds` of the model's runner propose from the texts that the host follows."""

    def __init__(self, rounds: ProposalRounds, proposer: NgramProposer) -> None:
        self._rounds: ProposalRounds = proxy(rounds)  # of the runner, which this is not to keep
        self._proposer = proposer

    def propose(
        self, sequences: Sequence_[Sequence], texts: Mapping[int, TextFollower]
    ) -> Mapping[int, tuple[int, ...]]:
        """Return `UNPROPOSED` tokens for all sequences of a step, of which those with `texts` propose, by id: none, if
        they cannot have these in a step of their own."""
        num_rounds, num_proposed = self._rounds.find_room(len(sequences))
        rows = dict[int, ExpectedRow]()
        for seq in sequences:
            text = texts.get(seq.seq_id)
            has_text = text is not None and self._proposer.takes(text)
            rows[seq.seq_id] = ExpectedRow(num_proposed if has_text else 0, text)
        num_left = max(seq.params.max_new_tokens - seq.num_generated for seq in sequences)
        if not num_rounds or num_left < 2 or not any(row.most for row in rows.values()):
            return {}
        self._proposer.expect(rows, find_least_rates(num_proposed))
        return {seq_id: (UNPROPOSED,) * (num_rounds * (1 + row.most) - 1) for seq_id, row in rows.items()}

    def forget(self) -> None:
        """See `ProposalRounds`."""
        self._rounds.forget()

    def drop(self, seq_id: int) -> None:
        """A sequence has ended."""
        self._proposer.drop(seq_id)

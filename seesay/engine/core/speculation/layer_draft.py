"""Proposes tokens by a layer that predicts further ones from the hidden states of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import proxy

import numpy as np
import numpy.typing as npt
import torch

from seesay.device.streams import on_stream
from seesay.engine.core.speculation.draft_model import DraftModel, DraftText
from seesay.llm.plans.step_plan import UNPROPOSED, Row
from seesay.llm.running.proposals.chain import MissingTokens
from seesay.llm.running.splices import Splices

if TYPE_CHECKING:
    from collections.abc import Sequence as Sequence_

    from seesay.llm.models.state_decoder import StateDecoder
    from seesay.llm.running.launched_step import LaunchedStep
    from seesay.llm.running.proposals.chain import ProposalChain
    from seesay.llm.running.proposals.kept_states import KeptStates
    from seesay.llm.running.proposals.rounds import ProposalRounds
    from seesay.llm.running.runner import ModelRunner
    from seesay.llm.scheduling.sequence import Sequence

_NO_END = 1 << 62


class LayerDraft(DraftModel):
    """A `DraftModel` of one layer. At place i it takes token i + 1, the model's hidden state of place i and the
    position of that; behind the last place that the model has computed, its own state. `states` has those of the model.

    What it has computed of its own states is computed again with the model's, once there are these. `chain` proposes
    where few tokens are missing, and greedy ones are wanted, and in several `rounds` of a step, where there are these.
    """

    num_skipped = 1

    def __init__(
        self,
        runner: ModelRunner,
        decoder: StateDecoder,
        states: KeptStates,
        chain: ProposalChain,
        rounds: ProposalRounds | None = None,
    ) -> None:
        super().__init__(runner)
        self._decoder, self.states, self._chain = decoder, states, chain
        self.rounds = None if rounds is None else LayerRounds(self, rounds)

    def _continue(self, texts: list[DraftText], most: int) -> dict[int, list[int]]:
        if not texts:
            return {}
        longest = self._chain.find_size(len(texts)).num_proposed
        chained, others = list[DraftText](), list[DraftText]()
        for text in texts:
            (chained if self.is_chained(text, longest) else others).append(text)
        found = super()._continue(others, most)
        return found | self._run_chain(chained, most) if chained else found

    def is_chained(self, text: DraftText, most: int) -> bool:
        """Whether a chain of up to `most` tokens can propose for a text."""
        num_missing = text.num_tokens - text.num_computed
        is_short = text.num_computed >= text.num_prompt_tokens and 0 < num_missing <= most + 1
        return is_short and self._runner.rows[text.seq.seq_id].params.is_plain

    def _run_chain(self, texts: list[DraftText], most: int) -> dict[int, list[int]]:
        """Return up to `most` tokens for each sequence, by id."""
        with torch.inference_mode(), on_stream(self._runner.stream):
            proposed = self._chain.run(self.take_missing(texts))
        return {text.seq.seq_id: own for text, own in zip(texts, proposed[:most].T.tolist(), strict=True)}

    def take_missing(self, texts: list[DraftText]) -> MissingTokens:
        """Return what the layer lacks of texts, which it computes now."""
        counts = np.array([text.num_tokens - text.num_computed for text in texts])
        states = [
            self._take_states(Row(text.seq.seq_id, text.num_computed, count, True))
            for text, count in zip(texts, counts.tolist(), strict=True)
        ]
        for text in texts:
            self._runner.rows[text.seq.seq_id].record(*text.learn(self._vocab_size))
            text.num_computed = text.num_tokens
        return MissingTokens([self._runner.rows[text.seq.seq_id] for text in texts], counts, torch.cat(states))

    def _find_embeddings(self, rows: Sequence_[Row], before: LaunchedStep | None) -> Mapping[int, Splices]:
        if before is not None:  # the decoder has its own states of the same rows
            return {}
        taken = {row.seq_id: self._take_states(row) for row in rows}
        if all(row.num_tokens == 1 for row in rows):
            self._decoder.carry(torch.cat(list(taken.values())))
            return {}
        for row in rows:
            self._runner.rows[row.seq_id].media_end = _NO_END  # states come at all places
        return {seq_id: _splice(states) for seq_id, states in taken.items()}

    def _take_states(self, row: Row) -> torch.Tensor:
        """Return the model's states [num_tokens, hidden] for a row, zeros for those that there are not."""
        assert self.states is not None
        states = self.states.take(row.seq_id, row.start, row.start + row.num_tokens)
        return self._decoder.make_states(row.num_tokens) if states is None else states

    def _find_positions(self, seq: Sequence, num_prompt: int) -> tuple[npt.NDArray[np.int64], int]:
        if self._runner.decoder.traits.num_position_axes == 1:
            return super()._find_positions(seq, num_prompt)
        return seq.prompt_positions[..., :num_prompt], seq.next_position - self.num_skipped

    def _forget_proposed(self, text: DraftText, proposed: list[int]) -> None:
        super()._forget_proposed(text, proposed)
        text.proposed = ()


class LayerRounds:
    """Lets steps of the model propose by a `LayerDraft` themselves, in `rounds`, whose proposer is a `ChainProposer`
    (see `ChainSource`)."""

    def __init__(self, draft: LayerDraft, rounds: ProposalRounds) -> None:
        self._draft: LayerDraft = proxy(draft)  # these have this object, which is not to keep them
        self._rounds: ProposalRounds = proxy(rounds)
        self._texts: dict[int, DraftText] = {}

    def propose(self, sequences: Sequence_[Sequence]) -> Mapping[int, tuple[int, ...]]:
        """Return `UNPROPOSED` tokens for sequences of which nothing but the likeliest tokens is wanted, by id: none, if
        not all of them can have these in a step of their own."""
        self._texts = {}
        num_rounds, num_proposed = self._rounds.find_room(len(sequences))
        num_drafts = num_rounds * (1 + num_proposed) - 1
        if not num_rounds or max(map(_count_left, sequences)) < 2:
            return {}
        texts = self._draft.take_all(sequences, num_drafts)
        if len(texts) < len(sequences) or not all(self._draft.is_chained(text, num_proposed) for text in texts):
            return {}
        self._texts = {text.seq.seq_id: text for text in texts}
        return dict.fromkeys(self._texts, (UNPROPOSED,) * num_drafts)

    def forget(self) -> None:
        """See `ProposalRounds`."""
        self._rounds.forget()

    def begin_rounds(self, seq_ids: Sequence_[int]) -> MissingTokens | None:
        """See `ChainSource`."""
        if self._texts.keys() != set(seq_ids):
            return None
        return self._draft.take_missing([self._texts[seq_id] for seq_id in seq_ids])

    def end_rounds(self, seq_id: int, start: int, states: torch.Tensor) -> None:
        """See `ChainSource`."""
        text = self._texts[seq_id]
        text.num_sure = text.num_computed = start
        assert self._draft.states is not None
        self._draft.states.add(seq_id, start, states)


def _count_left(seq: Sequence) -> int:
    return seq.params.max_new_tokens - seq.num_generated


def _splice(states: torch.Tensor) -> Splices:
    return Splices(offsets=[np.arange(len(states))], pieces=[states], are_ends=[True])

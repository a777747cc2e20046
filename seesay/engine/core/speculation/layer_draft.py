"""Proposes tokens by the layer of a checkpoint that predicts further ones, from the hidden states of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from seesay.engine.core.speculation.draft_model import DraftModel, DraftText
from seesay.llm.running.splices import Splices

if TYPE_CHECKING:
    from collections.abc import Sequence as Sequence_

    from seesay.llm.models.predicting_decoder import PredictingDecoder
    from seesay.llm.plans.step_plan import Row
    from seesay.llm.running.kept_states import KeptStates
    from seesay.llm.running.launched_step import LaunchedStep
    from seesay.llm.running.runner import ModelRunner

_NO_END = 1 << 62
_NOTHING = Splices(offsets=[], pieces=[], are_ends=[])


class LayerDraft(DraftModel):
    """A `DraftModel` of one layer. Its token at place i takes the model's hidden state of place i - 1, or, behind the
    last one that the model has computed, its own. `states` has those of the model.

    What it has computed of its own states is computed again with the model's, once there are these. There is no state
    before the first token: the first place is as the second one, with which the layer was trained to begin.
    """

    def __init__(self, runner: ModelRunner, decoder: PredictingDecoder, states: KeptStates) -> None:
        super().__init__(runner)
        self._decoder, self.states = decoder, states

    def _find_embeddings(self, rows: Sequence_[Row], before: LaunchedStep | None) -> Mapping[int, Splices]:
        for row in rows:
            self._runner.rows[row.seq_id].media_end = _NO_END  # embeddings come at all places
        if before is not None:
            own = {row.seq_id: self._decoder.states[i : i + 1] for i, row in enumerate(before.step.rows)}
            return {row.seq_id: _splice(own[row.seq_id]) for row in rows}
        found = {}
        assert self.states is not None
        for row in rows:
            states = self.states.take(row.seq_id, row.start - 1, row.start - 1 + row.num_tokens)
            if states is not None and row.start == 0:
                states[:1] = states[1:2]
            found[row.seq_id] = _NOTHING if states is None else _splice(states)
        return found

    def _clip(self, token_ids: npt.NDArray[np.int64], start: int = 0) -> npt.NDArray[np.int64]:
        clipped = super()._clip(token_ids)
        if start == 0 and len(clipped) > 1:
            clipped[0] = clipped[1]
        return clipped

    def _forget_proposed(self, text: DraftText, proposed: list[int]) -> None:
        super()._forget_proposed(text, proposed)
        text.proposed = ()


def _splice(states: torch.Tensor) -> Splices:
    return Splices(offsets=[np.arange(len(states))], pieces=[states], are_ends=[True])

"""Beam search as in Transformers: which texts go on, and which answers are complete. Knows tokens and scores alone."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from seesay.config import BeamSearchParams


class Beam(NamedTuple):
    """A text that goes on: its generated tokens, and the sum of their log-probabilities."""

    token_ids: tuple[int, ...] = ()
    logprob: float = 0.0


class CompleteBeam(NamedTuple):
    """An answer. `token_ids` include the token that ended it, if one did (`is_ended`). score: `logprob` divided by the
    length to the power of the length penalty."""

    token_ids: tuple[int, ...]
    logprob: float
    is_ended: bool
    score: float


class BeamSearch:
    """One search. `running` are the texts whose next tokens are wanted, the best first; `complete` are the answers so
    far, the best first. The search of Transformers 5 (`GenerationMixin._beam_search`)."""

    def __init__(self, params: BeamSearchParams, ending_ids: Collection[int], *, max_tokens: int) -> None:
        """`ending_ids`: tokens that end an answer; `max_tokens`: most that one has."""
        self.running = [Beam()]
        self.complete: list[CompleteBeam] = []
        self.is_over = False
        self._params = params
        self._ending_ids = frozenset(ending_ids)
        self._max_tokens = max_tokens

    def advance(self, logprobs: Sequence[Mapping[int, float]]) -> None:
        """Take the next tokens of `running`: for each text the log-probabilities of at least its
        `beam_width + len(ending_ids)` likeliest ones."""
        width, length = self._params.beam_width, len(self.running[0].token_ids) + 1
        is_last = length >= self._max_tokens
        candidates = [
            Beam((*beam.token_ids, token_id), beam.logprob + logprob)
            for beam, found in zip(self.running, logprobs, strict=True)
            for token_id, logprob in found.items()
        ]
        candidates.sort(key=lambda beam: -beam.logprob)
        for beam in candidates[:width]:
            is_ended = beam.token_ids[-1] in self._ending_ids
            if is_ended or is_last:
                score = _score(beam.logprob, length, self._params.length_penalty)
                self.complete.append(CompleteBeam(*beam, is_ended, score))
        self.complete.sort(key=lambda beam: -beam.score)
        del self.complete[width:]
        self.running = [beam for beam in candidates if beam.token_ids[-1] not in self._ending_ids][:width]
        self.is_over = is_last or not self.running or not self._may_improve(length)

    def _may_improve(self, length: int) -> bool:
        """Whether a running text may still become one of the best answers."""
        params = self._params
        if len(self.complete) < params.beam_width:
            return True
        if params.early_stopping is True:
            return False
        if params.early_stopping == "never" and params.length_penalty > 0:
            length = self._max_tokens
        best = _score(self.running[0].logprob, length, params.length_penalty)
        return best > self.complete[-1].score


def _score(logprob: float, length: int, length_penalty: float) -> float:
    return logprob / math.pow(length, length_penalty)

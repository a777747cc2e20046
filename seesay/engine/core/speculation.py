"""Decides which rows propose tokens, and what. It changes no answer: a proposed token is kept if it is the one that
would have been sampled, which depends on nothing but the tokens before.

Tokens are proposed behind the last known one, so a step with proposals is planned when the one before is committed, and
the next one when it is. Therefore nothing is proposed where that costs more than it saves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seesay.llm.scheduling.text_follower import TextFollower

if TYPE_CHECKING:
    from seesay.llm.plans.sampling_params import SamplingParams
    from seesay.llm.scheduling.sequence import Sequence


def can_propose(params: SamplingParams) -> bool:
    """Return whether tokens of an answer may be computed together: not if the request needs more of each token's step
    than its logits, or changes these in a way that only the request knows."""
    asks_each = params.output_logits or params.output_last_hidden_state or params.pooling
    return params.max_new_tokens > 1 and not (asks_each or params.logits_processors)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationRule:
    """When to propose tokens.

    most: proposed tokens of a row. most_tokens: of a step that computes proposals; more would take longer than the
    steps that they save. least_saved: steps that all rows together must be expected to save, for each row of the step.
    """

    most: int
    most_tokens: int
    least_saved: float


class Speculation:
    """Follows the texts of live sequences. Used by the engine loop's thread."""

    def __init__(self, rule: SpeculationRule, *, vocab_size: int) -> None:
        self._rule = rule
        self._vocab_size = vocab_size
        self._texts: dict[int, TextFollower] = {}
        self._sure: dict[int, TextFollower] = {}  # those that expect a token

    def begin(self, seq: Sequence) -> None:
        """Follow a sequence that was admitted."""
        if can_propose(seq.params):
            self._texts[seq.seq_id] = TextFollower(seq.token_ids)

    def follow(self, seq_id: int, token_ids: Iterable[int]) -> None:
        """Take new tokens of a sequence that goes on."""
        text = self._texts.get(seq_id)
        if text is None:
            return
        text.follow(token_ids)
        if text.is_sure:
            self._sure[seq_id] = text
        else:
            self._sure.pop(seq_id, None)

    def drop(self, seq_id: int) -> None:
        """A sequence has ended."""
        self._texts.pop(seq_id, None)
        self._sure.pop(seq_id, None)

    def clear(self) -> None:
        """All sequences have ended."""
        self._texts.clear()
        self._sure.clear()

    def propose(self, num_rows: int) -> Mapping[int, tuple[int, ...]]:
        """Return the tokens that sequences propose, by id, if it is worth while in a step of `num_rows` rows."""
        if not self._sure or 2 * num_rows > self._rule.most_tokens:
            return {}
        most = min(self._rule.most, self._rule.most_tokens // max(1, num_rows) - 1)
        found: dict[int, tuple[int, ...]] = {}
        saved = 0.0
        for seq_id, text in self._sure.items():
            if proposed := self._cut(text.propose(most)):
                found[seq_id] = proposed
                saved += sum(text.rate**count for count in range(1, len(proposed) + 1))
        return found if saved >= self._rule.least_saved * num_rows else {}

    def _cut(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens before the first one that has no logit: a placeholder of media."""
        stop = next((i for i, token_id in enumerate(token_ids) if token_id >= self._vocab_size), len(token_ids))
        return token_ids[:stop]

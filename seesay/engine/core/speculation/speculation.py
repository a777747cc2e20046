"""Decides which rows propose tokens, and what. It changes no answer: a proposed token is kept if it is the one that
would have been sampled, which depends on nothing but the tokens before.

Tokens are proposed behind the last known one, so a step with proposals is planned when the one before is committed, and
the next one when it is. Therefore nothing is proposed where that costs more than it saves.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from seesay.engine.core.speculation.media_answers import MediaAnswers
from seesay.llm.scheduling.sequence import SequenceStatus
from seesay.llm.scheduling.text_follower import TextFollower

if TYPE_CHECKING:
    from seesay.engine.core.speculation.draft_model import DraftModel
    from seesay.engine.core.speculation.text_rounds import TextRounds
    from seesay.llm.plans.sampling_params import SamplingParams
    from seesay.llm.scheduling.sequence import Sequence

logger = logging.getLogger("seesay")

_LEAST_ACCEPTED = 0.4
"""Accepted tokens of a step, on average, below which a model proposes nothing for a while."""
_LEAST_STEPS, _AVERAGED_STEPS = 8, 16
"""Steps of which the average is known, and about how many of the last ones it is of: one is far off by chance."""
_LONGEST_PAUSE = 1024


def can_propose(params: SamplingParams) -> bool:
    """Return whether tokens of an answer may be computed together: not if the request needs more of each token's step
    than its logits, or changes these in a way that only the request knows."""
    asks_each = params.output_logits or params.output_last_hidden_state or params.pooling
    return params.max_new_tokens > 1 and not (asks_each or params.logits_processors)


def takes_plainly(seq: Sequence, *, is_ruled: bool) -> bool:
    """Return whether nothing but the model's likeliest token, or a drawn one, is ever wanted of a sequence."""
    params = seq.params
    has_rules = is_ruled or params.needs_masks or seq.adapter_id
    return bool((params.is_plain or params.is_plainly_drawn) and not has_rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationRule:
    """When to propose tokens.

    most: proposed tokens of a row. most_tokens: of a step that computes proposals; more would take longer than the
    steps that they save. least_saved: steps that all rows together must be expected to save, for each row of the step.
    """

    most: int
    most_tokens: int
    least_saved: float


class Speculation(Protocol):
    """Proposes tokens of live sequences."""

    def begin(self, seq: Sequence, *, is_ruled: bool = False) -> None:
        """Take a sequence that was admitted. is_ruled: a grammar or a limit of thoughts forbids some of its tokens."""
        ...

    def follow(self, seq_id: int, token_ids: Sequence_[int]) -> None:
        """Take new tokens of a sequence."""
        ...

    def drop(self, seq_id: int) -> None:
        """A sequence has ended."""
        ...

    def clear(self) -> None:
        """All sequences have ended."""
        ...

    def forget(self) -> None:
        """Keep nothing of sequences that have ended, and nothing that was computed ahead."""
        ...

    def is_wanted(self, num_rows: int) -> bool:
        """Whether tokens may be proposed for a step of `num_rows` rows, if the step before brings what is expected."""
        ...

    def propose(self, num_rows: int) -> Mapping[int, tuple[int, ...]]:
        """Return the tokens that sequences propose, by id, if it is worth while in a step of `num_rows` rows. All plans
        are committed."""
        ...


class TextSpeculation:
    """Follows the texts of live sequences, while steps have so few rows that tokens may be proposed. Each begins behind
    earlier answers to the same media. Used by the engine loop's thread.

    rounds: lets a step propose by itself, where all of its rows take the likeliest or a drawn token.
    """

    def __init__(self, rule: SpeculationRule, *, vocab_size: int, rounds: TextRounds | None = None) -> None:
        self._rule = rule
        self._vocab_size = vocab_size
        self._rounds = rounds
        self._free: set[int] = set()  # those of which no more than such a token is wanted
        self._num_rows = 0  # of the step before
        self._answers = MediaAnswers()
        self._live: dict[int, Sequence] = {}
        self._texts: dict[int, TextFollower] = {}
        self._sure: dict[int, TextFollower] = {}  # those that expect a token

    def begin(self, seq: Sequence, *, is_ruled: bool = False) -> None:
        """See `Speculation`."""
        if can_propose(seq.params):
            self._live[seq.seq_id] = seq
            if takes_plainly(seq, is_ruled=is_ruled):
                self._free.add(seq.seq_id)

    def follow(self, seq_id: int, token_ids: Sequence_[int]) -> None:
        """Take new tokens of a sequence."""
        seq = self._live.get(seq_id)
        if seq is None or 2 * self._num_rows > self._rule.most_tokens:
            return
        text = self._texts.get(seq_id)
        if text is None:
            text = self._texts[seq_id] = TextFollower(seq.token_ids, before=self._answers.find(seq))
        elif text.num_tokens + len(token_ids) == seq.num_tokens:
            text.follow(token_ids)
        else:  # there were too many rows for a while
            text.learn(seq.token_ids[text.num_tokens :])
        if text.is_sure:
            self._sure[seq_id] = text
        else:
            self._sure.pop(seq_id, None)

    def drop(self, seq_id: int) -> None:
        """A sequence has ended."""
        if (seq := self._live.pop(seq_id, None)) is not None:
            self._answers.add(seq)
        self._texts.pop(seq_id, None)
        self._sure.pop(seq_id, None)
        self._free.discard(seq_id)
        if self._rounds is not None:
            self._rounds.drop(seq_id)

    def clear(self) -> None:
        """All sequences have ended."""
        for seq_id in list(self._live):
            self.drop(seq_id)

    def forget(self) -> None:
        """See `Speculation`."""
        self._answers.clear()
        if self._rounds is not None:
            self._rounds.forget()

    def is_wanted(self, num_rows: int) -> bool:
        """See `Speculation`."""
        return bool(self._find(num_rows))

    def propose(self, num_rows: int) -> Mapping[int, tuple[int, ...]]:
        """See `Speculation`."""
        found = self._find(num_rows)
        return (found and self._propose_in_rounds(num_rows)) or found

    def _find(self, num_rows: int) -> Mapping[int, tuple[int, ...]]:
        """Return what texts propose, if that is worth while."""
        self._num_rows = num_rows
        if not self._sure or 2 * num_rows > self._rule.most_tokens:
            return {}
        most = min(self._rule.most, self._rule.most_tokens // max(1, num_rows) - 1)
        found: dict[int, tuple[int, ...]] = {}
        saved = 0.0
        for seq_id, text in self._sure.items():
            if self._is_current(seq_id) and (proposed := cut(text.propose(most), self._vocab_size)):
                found[seq_id] = proposed
                saved += sum(text.rate**count for count in range(1, len(proposed) + 1))
        return found if saved >= self._rule.least_saved * num_rows else {}

    def _propose_in_rounds(self, num_rows: int) -> Mapping[int, tuple[int, ...]]:
        """Return what all sequences of a step propose, if it can do so itself and they have no other rules."""
        running = [seq for seq in self._live.values() if seq.status is SequenceStatus.RUNNING and seq.num_generated]
        if self._rounds is None or len(running) != num_rows or not self._free.issuperset(s.seq_id for s in running):
            return {}
        texts = {seq_id: text for seq_id, text in self._sure.items() if self._is_current(seq_id)}
        return self._rounds.propose(running, texts)

    def _is_current(self, seq_id: int) -> bool:
        return self._texts[seq_id].num_tokens == self._live[seq_id].num_tokens


@dataclass(slots=True)
class _Proposals:
    """Those of a model for one sequence. expected: accepted tokens of a step, which are all until some steps are known.
    pause: tokens until the next try; next_pause: those of the next pause. is_free: nothing but the likeliest tokens is
    wanted. num_drafted, num_accepted: those of the sequence that are counted."""

    seq: Sequence
    most: int
    next_pause: int
    is_free: bool = False
    pause: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    _num_steps: int = 0  # since the last pause
    _average: float = 0.0  # of accepted tokens, of the last ones

    @property
    def expected(self) -> float:
        return self.most if self._num_steps < _LEAST_STEPS else self._average

    def count(self, *, pause_tokens: int) -> None:
        """Count a step, if one had proposals, and pause where few are accepted: twice as long each time, until more
        are."""
        if self.seq.num_drafted == self.num_drafted:
            return
        num_rounds = max(1.0, (self.seq.num_drafted - self.num_drafted) / self.most)
        num_accepted = (self.seq.num_accepted - self.num_accepted) / num_rounds
        self.num_drafted, self.num_accepted = self.seq.num_drafted, self.seq.num_accepted
        self._num_steps += 1
        self._average += (num_accepted - self._average) / min(self._num_steps, _AVERAGED_STEPS)
        if self.expected >= _LEAST_ACCEPTED:
            self.next_pause = pause_tokens if self._num_steps >= _LEAST_STEPS else self.next_pause
            return
        self.pause, self.next_pause = self.next_pause, min(2 * self.next_pause, _LONGEST_PAUSE)
        self._num_steps = 0


class ModelSpeculation:
    """Lets a smaller model propose, as long as what it proposes is accepted. Used by the engine loop's thread.

    pause_tokens: so long it proposes nothing at first, where few are.
    """

    pause_tokens = 64

    def __init__(self, rule: SpeculationRule, draft: DraftModel, *, vocab_size: int) -> None:
        self._rule = rule
        self._draft: DraftModel | None = draft
        self._vocab_size = vocab_size
        self._live: dict[int, _Proposals] = {}

    def begin(self, seq: Sequence, *, is_ruled: bool = False) -> None:
        """See `Speculation`."""
        if self._draft is not None and can_propose(seq.params):
            if self._draft.states is not None:
                self._draft.states.begin(seq.seq_id)
            is_free = seq.params.is_plain and takes_plainly(seq, is_ruled=is_ruled)
            self._live[seq.seq_id] = _Proposals(seq, self._rule.most, self.pause_tokens, is_free=is_free)

    def follow(self, seq_id: int, token_ids: Sequence_[int]) -> None:
        """Take new tokens of a sequence."""
        one = self._live.get(seq_id)
        if one is None:
            return
        one.count(pause_tokens=self.pause_tokens)
        one.pause = max(0, one.pause - len(token_ids))

    def drop(self, seq_id: int) -> None:
        """A sequence has ended."""
        if self._live.pop(seq_id, None) is not None and self._draft is not None:
            self._draft.drop(seq_id)
            if self._draft.states is not None:
                self._draft.states.drop(seq_id)

    def clear(self) -> None:
        """All sequences have ended."""
        for seq_id in list(self._live):
            self.drop(seq_id)

    def forget(self) -> None:
        """See `Speculation`."""
        if self._draft is not None and self._draft.rounds is not None:
            self._draft.rounds.forget()

    def is_wanted(self, num_rows: int) -> bool:
        """See `Speculation`."""
        return bool(self._find_willing(num_rows))

    def propose(self, num_rows: int) -> Mapping[int, tuple[int, ...]]:
        """See `Speculation`."""
        willing = self._find_willing(num_rows)
        if not willing or self._draft is None:
            return {}
        most = min(self._rule.most, self._rule.most_tokens // num_rows - 1)
        sequences = [one.seq for one in willing]
        try:
            found = _propose_in_rounds(self._draft, willing) if len(willing) == num_rows else {}
            found = found or self._draft.propose(sequences, most)
        except Exception:
            logger.exception("the model that proposes tokens failed: nothing is proposed any more")
            if self._draft.states is not None:
                self._draft.states.clear()
            self._draft = None
            self._live.clear()
            return {}
        return {seq_id: kept for seq_id, token_ids in found.items() if (kept := cut(token_ids, self._vocab_size))}

    def _find_willing(self, num_rows: int) -> list[_Proposals]:
        """Return the sequences for which it is worth while to propose; none where all of them wait for blocks."""
        if not num_rows or not self._live or 2 * num_rows > self._rule.most_tokens:
            return []
        willing = [one for one in self._live.values() if not one.pause and one.seq.num_generated > 0]
        saved = sum(one.expected for one in willing)
        return willing if saved >= self._rule.least_saved * num_rows else []


def _propose_in_rounds(draft: DraftModel, willing: Sequence_[_Proposals]) -> Mapping[int, tuple[int, ...]]:
    """Return what all sequences of a step propose, if it can do so itself, they have no other rules, and a round is
    expected to bring a token more for each of them."""
    is_free = all(one.is_free for one in willing) and sum(one.expected for one in willing) >= len(willing)
    if draft.rounds is None or not is_free:
        return {}
    return draft.rounds.propose([one.seq for one in willing])


def cut(token_ids: tuple[int, ...], vocab_size: int) -> tuple[int, ...]:
    """Return the tokens before the first one that has no logit: a placeholder of media."""
    stop = next((i for i, token_id in enumerate(token_ids) if token_id >= vocab_size), len(token_ids))
    return token_ids[:stop]

"""Predicts how long a step takes: measured or guessed at start, corrected by the steps that were timed. No torch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from seesay.llm.plans.step_plan import Row

NUM_TERMS = 4
"""Of a prediction: what every step takes, its tokens, the contexts of its decode rows, the contexts of its prompts."""
NOISE = 0.05
"""Relative standard deviation of the durations of equal steps."""
DRIFT = 0.02
"""How far each term's correction may have moved from one timed step to the next, relative to itself."""
MAX_SURPRISE = 0.15
"""An observation that is further from its prediction counts as so far: a step may have waited for a stalled host."""
MAX_DOUBLINGS = 3
"""How often that limit is doubled while steps go on to surprise."""
LEAST_FACTOR = 0.02
"""No term falls below this share of its start value, so that more work is never predicted to take less time."""


class StepWork(NamedTuple):
    """The work of a step. num_decode_rows: tokens of its decode rows, drafts included. num_decode_context: tokens that
    these rows attend to, in all. num_prompt_pairs: pairs
    of a prompt token and a token that it attends to."""

    num_decode_rows: int = 0
    num_decode_context: int = 0
    num_prompt_tokens: int = 0
    num_prompt_pairs: float = 0.0


def measure_work(rows: Iterable[Row]) -> StepWork:
    """Return the work of a plan's rows."""
    num_rows = num_context = num_tokens = 0
    num_pairs = 0.0
    for row in rows:
        if row.num_known == 1:
            num_rows += row.num_tokens
            num_context += row.start + row.num_tokens
        else:
            num_tokens += row.num_tokens
            num_pairs += count_pairs(row.start, row.num_tokens)
    return StepWork(num_rows, num_context, num_tokens, num_pairs)


def count_pairs(start: int, num_tokens: int) -> float:
    """Return the pairs of `num_tokens` tokens from position `start` and the tokens up to each of them."""
    return num_tokens * (start + num_tokens / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Seconds that steps take, as far as known at start.

    sizes, seconds: steps of so many tokens take so long, without the time for contexts; both ascending. Steps of other
    numbers of tokens are padded to the next size if `is_padded`, else their times lie between; beyond the last size,
    times go on growing as they do from the first size to the last.
    context_s: more per token that a decode row attends to. pair_s: more per pair of a prompt token and a token that it
    attends to.
    spread: relative standard deviation of all of these from the truth.
    """

    sizes: Sequence[int]
    seconds: Sequence[float]
    context_s: float
    pair_s: float
    is_padded: bool
    spread: float

    def __post_init__(self) -> None:
        assert len(self.sizes) == len(self.seconds) > 1, self
        assert list(self.sizes) == sorted(set(self.sizes)) and self.sizes[0] >= 1, self.sizes
        assert min(*self.seconds, self.context_s, self.pair_s, self.spread) > 0, self

    @classmethod
    def guess(cls, flops_per_token: float) -> StepCosts:
        """Return the costs of a machine of which nothing is known but the model: one CPU core, more or less."""
        token_s = flops_per_token / 5e10
        return cls(
            sizes=(1, 1024),
            seconds=(1e-3 + token_s, 1e-3 + 1024 * token_s),
            context_s=token_s / 1e4,
            pair_s=token_s / 1e4,
            is_padded=False,
            spread=1.0,
        )


class StepTimes:
    """Durations of steps, predicted from their work.

    A duration is the sum of `NUM_TERMS` terms, each the start value of `StepCosts` times a factor. A Kalman filter
    corrects the factors by each timed step: they drift, and durations are noisy in proportion to their length. The
    uncertainty of a factor is limited, so that one about which no step tells anything keeps its value. The surprise of
    an observation is limited, too; the limit doubles a few times while surprises to the same side go on. So one stalled
    step changes little, and a machine that became slower is soon known.

    Predictions are positive, and grow with everything in `StepWork`. The same observations give the same predictions.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._sizes = tuple(costs.sizes)
        self._seconds: tuple[float, ...] = tuple(accumulate(costs.seconds, max))
        self._slope_s = (self._seconds[-1] - self._seconds[0]) / (self._sizes[-1] - self._sizes[0])
        self._is_padded = costs.is_padded
        self._context_s, self._pair_s = costs.context_s, costs.pair_s
        self._spread = costs.spread
        self._factors = [1.0] * NUM_TERMS
        self._covariance = np.eye(NUM_TERMS) * costs.spread**2
        self._num_surprises = 0  # in a row, negative for those of steps that took less than predicted

    def predict(self, work: StepWork) -> float:
        """Return the seconds that a step takes."""
        return sum(factor * term for factor, term in zip(self._factors, self._list_terms(work)))

    def observe(self, work: StepWork, seconds: float) -> None:
        """Learn from a step that took `seconds`."""
        terms = np.array(self._list_terms(work))
        predicted = float(terms @ self._factors)
        terms /= predicted
        surprise = self._limit_surprise(seconds / predicted - 1)
        gain = self._covariance @ terms
        gain /= terms @ gain + NOISE**2
        factors = np.maximum(np.array(self._factors) + gain * surprise, LEAST_FACTOR)
        covariance = self._covariance - np.outer(gain, terms @ self._covariance)
        covariance[np.diag_indices(NUM_TERMS)] += (DRIFT * factors) ** 2
        # Rows and columns are scaled together: the covariance stays one.
        most = self._spread * np.maximum(factors, 1)
        shrink = np.minimum(1, most / np.sqrt(covariance.diagonal()))
        self._covariance = covariance * np.outer(shrink, shrink)
        self._factors = factors.tolist()

    def _limit_surprise(self, surprise: float) -> float:
        if abs(surprise) <= MAX_SURPRISE:
            self._num_surprises = 0
            return surprise
        side = 1 if surprise > 0 else -1
        self._num_surprises = self._num_surprises + side if self._num_surprises * side > 0 else side
        limit = MAX_SURPRISE * 2.0 ** min(abs(self._num_surprises) - 1, MAX_DOUBLINGS)
        return max(-limit, min(limit, surprise))

    def _list_terms(self, work: StepWork) -> tuple[float, float, float, float]:
        least_s = self._seconds[0]
        return (
            least_s,
            self._find_seconds(work.num_decode_rows + work.num_prompt_tokens) - least_s,
            self._context_s * work.num_decode_context,
            self._pair_s * work.num_prompt_pairs,
        )

    def _find_seconds(self, num_tokens: int) -> float:
        """The start value for a step of so many tokens, contexts aside."""
        sizes, seconds = self._sizes, self._seconds
        index = bisect_left(sizes, num_tokens)
        if index == len(sizes):
            return seconds[-1] + (num_tokens - sizes[-1]) * self._slope_s
        if index == 0 or self._is_padded:
            return seconds[index]
        share = (num_tokens - sizes[index - 1]) / (sizes[index] - sizes[index - 1])
        return seconds[index - 1] + share * (seconds[index] - seconds[index - 1])

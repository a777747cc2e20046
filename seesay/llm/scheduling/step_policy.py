"""Decides how many prompt tokens the next step may have. Knows counts and times; no sequences, no tensors."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from seesay.llm.plans.step_plan import Row
from seesay.llm.plans.step_times import StepTimes, StepWork, count_pairs, measure_work

LEAST_TOKENS = 64
"""With fewer prompt tokens, a step on a GPU is hardly shorter: it reads all weights."""
MAX_PROMPTS = 512
"""Most waiting prompts that `TimedSteps` looks at before a step."""
ENOUGH_TOKENS = 1 << 14
"""More prompt tokens than any step beside streamed answers has."""


class WaitingPrompt(NamedTuple):
    """`num_tokens` tokens of one sequence that could be computed now, from position `start`. `wait_s`: seconds since
    the sequence was added."""

    start: int
    num_tokens: int
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """The load of the next step: what it has beside prompt tokens, and which prompts wait.

    num_decode_rows: rows of one token. num_decode_context: tokens that these rows attend to, in all.
    is_streamed: whether the answer of one of them is read while it is made.
    is_encoding: whether an embedding is not ready that is asked for, at the latest by the plan of this step: a call of
        the tower may come before it.
    prompts: in the order in which they are computed. To be read once, and only as far as needed: many may wait. A
    prompt's cached beginning is not known before it is admitted, so it counts as if nothing were cached.
    """

    num_decode_rows: int
    num_decode_context: int
    is_streamed: bool
    is_encoding: bool
    prompts: Iterable[WaitingPrompt]


class StepPolicy(Protocol):
    """The scheduler asks it once for each step."""

    def limit_prompt_tokens(self, load: StepLoad) -> int | None:
        """Return the most prompt tokens of the next step, at least 1; None for as many as the scheduler's own limits
        allow."""
        ...

    def observe(self, rows: Sequence[Row], seconds: float) -> None:
        """Take note that a step of `rows` took `seconds`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedChunks:
    """The same number of tokens in every step of a kind; None is no limit.

    max_streamed_tokens: beside streamed answers, so that none of them waits long for the prompts of others.
    max_encoding_tokens: while embeddings are made, so that those already made are soon used.
    """

    max_streamed_tokens: int | None = None
    max_encoding_tokens: int | None = None

    def __post_init__(self) -> None:
        for limit in (self.max_streamed_tokens, self.max_encoding_tokens):
            assert limit is None or limit >= 1, self

    def limit_prompt_tokens(self, load: StepLoad) -> int | None:
        streamed = self.max_streamed_tokens if load.is_streamed else None
        encoding = self.max_encoding_tokens if load.is_encoding else None
        return min((limit for limit in (streamed, encoding) if limit is not None), default=None)

    def observe(self, rows: Sequence[Row], seconds: float) -> None:
        """Nothing depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSteps:
    """Steps beside streamed answers are sized by the duration that `times` predicts, at most `max_step_s`.

    They are as short as they may be for every waiting prompt to be computed in time, and take between `short_share` and
    `usual_share` of `max_step_s`. A prompt is in time `target_s` after it came, and `target_ms_per_token` later for
    each of its tokens: short prompts cost little, and who asks one waits for its answer before asking again. When that
    is not enough, steps grow to all of `max_step_s` while the oldest prompt waits for another `patience_s`. While
    embeddings are made, calls of the tower come between steps, and who reads an answer waits for both: steps then take
    at most `encoding_share`, or `usual_share` when no answer is streamed. Otherwise steps without streamed answers have
    no limit.

    Each step may have `least_tokens` prompt tokens, however long they take, so that every prompt is computed at last.
    """

    times: StepTimes
    max_step_s: float
    target_s: float = 0.05
    target_ms_per_token: float = 0.3
    patience_s: float = 20.0
    short_share: float = 0.3
    usual_share: float = 0.85
    encoding_share: float = 0.75
    least_tokens: int = LEAST_TOKENS

    def __post_init__(self) -> None:
        assert min(self.max_step_s, self.target_s, self.patience_s) > 0 <= self.target_ms_per_token, self
        assert 0 < self.short_share <= self.encoding_share <= self.usual_share <= 1 <= self.least_tokens, self

    def limit_prompt_tokens(self, load: StepLoad) -> int | None:
        if not (load.is_streamed or load.is_encoding):
            return None
        queue = _PromptQueue.look_at(load, self.target_s, self.target_ms_per_token / 1e3)
        return max(self.least_tokens, self._fit(load, queue, self._find_duration(load, queue)))

    def observe(self, rows: Sequence[Row], seconds: float) -> None:
        """Correct the predictions, by a step that has prompt tokens: others are not sized."""
        if any(row.num_known > 1 for row in rows):
            self.times.observe(measure_work(rows), seconds)

    def _find_duration(self, load: StepLoad, queue: _PromptQueue) -> float:
        """Return how long the next step should take."""
        is_between_calls = load.is_encoding and load.is_streamed
        usual_s = (self.encoding_share if is_between_calls else self.usual_share) * self.max_step_s
        if not load.is_streamed:
            return usual_s
        if queue.needed_per_s < math.inf:
            count = queue.find_first(lambda count: count >= queue.needed_per_s * self._predict(load, queue, count))
            if (needed_s := self._predict(load, queue, count)) <= usual_s:
                return max(self.short_share * self.max_step_s, needed_s)
        if load.is_encoding:
            return usual_s
        lateness = max(0.0, queue.latest_s) / self.patience_s
        return usual_s + min(1.0, lateness) * (self.max_step_s - usual_s)

    def _fit(self, load: StepLoad, queue: _PromptQueue, max_s: float) -> int:
        """Return the most prompt tokens with which a step takes no more than `max_s`; 0 when none do."""
        return queue.find_first(lambda count: self._predict(load, queue, count + 1) > max_s)

    def _predict(self, load: StepLoad, queue: _PromptQueue, count: int) -> float:
        """Return the seconds of a step with the first `count` tokens of the waiting prompts."""
        return self.times.predict(
            StepWork(load.num_decode_rows, load.num_decode_context, count, queue.count_pairs(count))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PromptQueue:
    """The prompts that wait, as far as they matter. ends: tokens up to the end of each. pairs: see `StepWork`.
    needed_per_s: tokens per second with which each is computed in time; infinite when one is late. latest_s: how late
    the prompt is that is latest; negative when none is late."""

    prompts: Sequence[WaitingPrompt]
    ends: Sequence[int]
    pairs: Sequence[float]
    needed_per_s: float
    latest_s: float

    @classmethod
    def look_at(cls, load: StepLoad, target_s: float, target_s_per_token: float) -> _PromptQueue:
        """Read the prompts of `load`, as long as more of them could matter. Each is to be computed `target_s` after it
        came, and `target_s_per_token` later for each of its tokens."""
        prompts: list[WaitingPrompt] = []
        ends: list[int] = []
        pairs: list[float] = []
        num_tokens, num_pairs, needed_per_s, latest_s = 0, 0.0, 0.0, -math.inf
        for prompt in load.prompts:
            num_tokens += prompt.num_tokens
            num_pairs += count_pairs(prompt.start, prompt.num_tokens)
            prompts.append(prompt)
            ends.append(num_tokens)
            pairs.append(num_pairs)
            left_s = target_s + target_s_per_token * (prompt.start + prompt.num_tokens) - prompt.wait_s
            needed_per_s = max(needed_per_s, num_tokens / left_s) if left_s > 0 else math.inf
            latest_s = max(latest_s, -left_s)
            if len(prompts) == MAX_PROMPTS or (needed_per_s == math.inf and num_tokens >= ENOUGH_TOKENS):
                break
        return cls(prompts=prompts, ends=ends, pairs=pairs, needed_per_s=needed_per_s, latest_s=latest_s)

    def count_pairs(self, count: int) -> float:
        """Return the pairs of the first `count` tokens."""
        index = bisect_left(self.ends, count)
        before, pairs = (self.ends[index - 1], self.pairs[index - 1]) if index else (0, 0.0)
        if index == len(self.prompts) or count == before:
            return pairs
        return pairs + count_pairs(self.prompts[index].start, count - before)

    def find_first(self, holds: Callable[[int], bool]) -> int:
        """Return the least number of tokens for which `holds`, all of them when it never does. It must hold for all
        greater numbers, too."""
        return bisect_left(range(self.ends[-1] if self.ends else 0), True, key=holds)

"""Policies that size a step by its predicted duration. The engine does not use them yet: policy.py compares them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from step_model import LinearTimes

from seesay.llm.step_policy import FixedChunks, StepLoad, WaitingPrompt
from seesay.llm.step_sizes import token_sizes

LEAST_TOKENS = 64
"""Every step has at least so many prompt tokens: with fewer, its duration is that of reading the weights."""
UNSTREAMED = FixedChunks(max_encoding_tokens=1024)
"""How long a step is while nobody reads an answer."""
SIZES = token_sizes(8192)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgedSteps:
    """Steps beside streamed answers take `min_step_ms` while the oldest prompt has waited less than `young_s`, and
    `max_step_ms` once it has waited `old_s`; between them the duration grows linearly."""

    times: LinearTimes
    max_step_ms: float = 25.0
    min_step_ms: float = 12.0
    young_s: float = 0.3
    old_s: float = 0.8

    def limit_prompt_tokens(self, load: StepLoad) -> int | None:
        if not load.is_streamed:
            return UNSTREAMED.limit_prompt_tokens(load)
        prompts = list(load.prompts)
        age_s = max((prompt.wait_s for prompt in prompts), default=0.0)
        share = min(1.0, max(0.0, (age_s - self.young_s) / (self.old_s - self.young_s)))
        return fit_tokens(self.times, load, prompts, self.min_step_ms + share * (self.max_step_ms - self.min_step_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineSteps:
    """Steps beside streamed answers are as short as they may be for each waiting prompt to be computed `target_s` after
    it was added, and take between `min_step_ms` and `max_step_ms`.

    A step of d ms, of which b would be spent without prompts, computes prompts for d - b. The first i prompts take w(i)
    ms, and the last of them has r(i) ms left. So the prompts' share of a step must be the largest w(i) / r(i), and
    d = b / (1 - share).
    """

    times: LinearTimes
    target_s: float = 0.75
    max_step_ms: float = 25.0
    min_step_ms: float = 12.0

    def limit_prompt_tokens(self, load: StepLoad) -> int | None:
        if not load.is_streamed:
            return UNSTREAMED.limit_prompt_tokens(load)
        waiting = iter(load.prompts)
        share, seen = self._find_share(waiting)
        step_ms = self.max_step_ms
        if share < 1:
            step_ms = min(self.max_step_ms, max(self.min_step_ms, find_base_ms(self.times, load) / (1 - share)))
        return fit_tokens(self.times, load, chain(seen, waiting), step_ms)

    def _find_share(self, waiting: Iterator[WaitingPrompt]) -> tuple[float, list[WaitingPrompt]]:
        """The share of prompts that steps must have, and the prompts that were looked at: those after a share of 1 do
        not matter."""
        share, work_ms = 0.0, 0.0
        seen = []
        for prompt in waiting:
            seen.append(prompt)
            work_ms += find_prompt_ms(self.times, prompt)
            left_ms = 1e3 * (self.target_s - prompt.wait_s)
            share = max(share, work_ms / left_ms) if left_ms > work_ms else 1.0
            if share >= 1:
                break
        return share, seen


def find_base_ms(times: LinearTimes, load: StepLoad) -> float:
    """What a step with prompts takes without their tokens."""
    constant, row_ms, context_ms, *_ = times.mixed
    return constant + row_ms * load.num_decode_rows + context_ms * load.num_decode_context


def find_prompt_ms(times: LinearTimes, prompt: WaitingPrompt) -> float:
    """What the tokens of a prompt add to a step."""
    *_, token_ms, pair_ms = times.mixed
    return prompt.num_tokens * (token_ms + pair_ms * (prompt.start + prompt.num_tokens / 2))


def fit_tokens(times: LinearTimes, load: StepLoad, prompts: Iterable[WaitingPrompt], max_ms: float) -> int:
    """How many tokens of `prompts`, in their order, a step of `max_ms` has beside the decode rows. When that is not all
    of them, it is a number that leaves no padding: steps are filled up to few sizes."""
    *_, token_ms, pair_ms = times.mixed
    left_ms, num_tokens = max(0.0, max_ms - find_base_ms(times, load)), 0
    for prompt in prompts:
        prompt_ms = find_prompt_ms(times, prompt)
        if prompt_ms > left_ms:
            slope = token_ms + pair_ms * prompt.start
            # n with n * slope + n^2 * pair_ms / 2 = left_ms
            num_tokens += int(2 * left_ms / (slope + math.sqrt(slope**2 + 2 * pair_ms * left_ms)))
            total = load.num_decode_rows + num_tokens
            num_tokens = SIZES[max(0, bisect_right(SIZES, total) - 1)] - load.num_decode_rows
            break
        left_ms -= prompt_ms
        num_tokens += prompt.num_tokens
    return max(LEAST_TOKENS, num_tokens)

"""Decides how many tokens a step has, and how owners divide them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterator

from seesay.llm.scheduling.fair_shares import TokenShares, divide_tokens
from seesay.llm.scheduling.live_sequences import LiveSequences
from seesay.llm.scheduling.open_step import OpenStep
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.sequence import Sequence
from seesay.llm.scheduling.step_policy import MAX_PROMPTS, StepLoad, StepPolicy, WaitingPrompt

Candidates = list[tuple[Sequence, int]]
"""Running sequences, each with the tokens that it lacks."""


class TokenBudget:
    """The tokens of steps, as `policy` limits them."""

    def __init__(
        self, config: SchedulerConfig, live: LiveSequences, policy: StepPolicy, clock: Callable[[], float]
    ) -> None:
        self._config = config
        self._live = live
        self._policy = policy
        self._clock = clock

    def open_step(self, candidates: Candidates, only: Container[int] | None) -> OpenStep:
        """Return a step without rows, for these running sequences and those that wait."""
        singles = min(self._count_singles(candidates), self._config.max_prefill_token_num)
        spare = self._find_spare(candidates, singles)
        extra = self._config.max_prefill_token_num - singles - spare
        shares = self._divide(spare, candidates)
        return OpenStep(singles=singles, spare=spare, shares=shares, extra=extra, kept=-(-spare // 2), only=only)

    def _count_singles(self, candidates: Candidates) -> int:
        """How many sequences have a row of one token in the next step."""
        singles = sum(missing == 1 for _, missing in candidates)
        if (count := self._config.num_micro_batches) == 1:
            return singles
        in_flight = sum(seq.num_pending > 0 for seq in self._live.running)
        return min(singles, -(-(singles + in_flight) // count))

    def _divide(self, spare: int, candidates: Candidates) -> TokenShares:
        """Divide the prompt tokens of a step among owners: those whose prompts are running, and those next in turn, as
        many as there are places."""
        if len(self._live.owners) < 2:
            return TokenShares()
        wanted = Counter[Hashable]()
        for seq, missing in candidates:
            if missing > 1:
                wanted[seq.owner] += min(missing, spare)
        for owner, num_tokens in self._live.waiting.find_owners(self._config.max_batch_size - len(self._live.running)):
            wanted[owner] += min(num_tokens, spare)
        return TokenShares(divide_tokens(spare, wanted))

    def _find_spare(self, candidates: Candidates, singles: int) -> int:
        """Most tokens that the next step has beside `singles` rows of one token. `candidates` are the running sequences
        with the tokens that each lacks."""
        going_on = [seq for seq, missing in candidates if missing == 1]
        load = StepLoad(
            num_decode_rows=singles,
            num_decode_context=sum(seq.num_scheduled + 1 for seq in going_on),
            is_streamed=any(seq.is_streamed for seq in going_on),
            is_encoding=self._live.needs.is_missing_any,
            prompts=self._iterate_prompts(candidates),
        )
        spare = self._config.max_prefill_token_num - singles
        limit = self._policy.limit_prompt_tokens(load)
        assert limit is None or limit >= 1, f"{self._policy} allows {limit} prompt tokens"
        return spare if limit is None else min(spare, limit)

    def _iterate_prompts(self, candidates: Candidates) -> Iterator[WaitingPrompt]:
        """The prompts that a step could compute now: those of running sequences, then those of waiting ones."""
        now_s = self._clock()
        for seq, missing in candidates:
            num_tokens = min(missing, seq.ready_until - seq.num_scheduled)
            if missing > 1 and num_tokens > 0:
                is_new = seq.num_scheduled >= seq.num_prompt_tokens  # tokens that were known with the last commit
                yield WaitingPrompt(seq.num_scheduled, num_tokens, 0.0 if is_new else now_s - seq.added_at_s)
        for seq in self._live.waiting.iterate_turns(MAX_PROMPTS):
            if seq.can_start(0, self._config.max_prefill_token_num):
                yield WaitingPrompt(0, min(seq.num_tokens, seq.ready_until), now_s - seq.added_at_s)

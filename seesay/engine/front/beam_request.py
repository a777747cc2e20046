"""The beam search of one request. Each text that goes on is a request for one token, in a group with the others: it
begins with the KV blocks of the text that it continues, so each costs one token.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from seesay.config import BeamSearchParams, GenerationConfig
from seesay.engine.front.beams import BeamSearch, CompleteBeam
from seesay.engine.front.shared_prompts import SharedPrompts
from seesay.errors import ErrorCode, RequestError
from seesay.processors.text.detokenize import IncrementalDetokenizer
from seesay.values import GenerationRequest, OutputDelta, StageTimings, Usage

if TYPE_CHECKING:
    from seesay.engine.front.engine import AsyncEngine


class BeamAnswer(NamedTuple):
    """An answer: its one delta, which is final, and its score."""

    delta: OutputDelta
    score: float


class BeamRequest:
    """A search: hand `make_requests` to the engine with `prompts`, give each final delta to `take`, until it `is_over`.

    prompts: shared by all requests of the search.
    """

    def __init__(self, engine: AsyncEngine, request: GenerationRequest, params: BeamSearchParams) -> None:
        """Of the request's own options, only those of the text of an answer count: which special tokens it has."""
        self._engine = engine
        self._given = request
        self._ending_ids = () if params.ignore_eos else engine.find_ending_ids(request)
        config = GenerationConfig(max_new_tokens=1, ignore_eos=True, logprobs=params.beam_width + len(self._ending_ids))
        self._request = replace(request, gen_config=config, streams=False)
        self.prompts = SharedPrompts([self._request], keeps_blocks=True)
        self._params = params
        self._beams = BeamSearch(params, self._ending_ids, max_tokens=params.max_tokens)
        self._logprobs: dict[int, Mapping[int, float]] = {}
        self._num_left = 0
        self._started_at = time.perf_counter()
        self._first: OutputDelta | None = None
        self.error: Exception | None = None

    @property
    def is_over(self) -> bool:
        """Whether there are answers, or an `error`."""
        return self._beams.is_over or self.error is not None

    def make_requests(self) -> list[GenerationRequest]:
        """Return the requests for the next token of each text."""
        self._logprobs.clear()
        requests = [replace(self._request, continuation=beam.token_ids) for beam in self._beams.running]
        self._num_left = len(requests)
        return requests

    def take(self, number: int, delta: OutputDelta) -> bool:
        """Take the final delta of request `number`. Returns whether all are there."""
        self._num_left -= 1
        self._note(number, delta)
        if self._num_left:
            return False
        if self.error is None:
            self._beams.advance([self._logprobs[index] for index in range(len(self._logprobs))])
        return True

    def _note(self, number: int, delta: OutputDelta) -> None:
        if delta.error is not None or not delta.logprobs:
            aborted = RequestError(ErrorCode.ABORTED, "the request was aborted")
            self.error = self.error or delta.error or aborted
            return
        self._logprobs[number] = delta.logprobs[0]
        if self._first is None and delta.usage is not None and self.error is None:
            self._begin(delta, delta.usage)

    def _begin(self, first: OutputDelta, usage: Usage) -> None:
        """Begin the search, at the first token, when the length of the prompt is known."""
        self._first = first
        longest = min(self._params.max_tokens, self._engine.session_len - usage.prompt_tokens)
        self._beams = BeamSearch(self._params, self._ending_ids, max_tokens=longest)

    def make_answers(self) -> list[BeamAnswer]:
        """Return the answers of a search that is over without an `error`, the best first."""
        return [BeamAnswer(self._make_delta(beam), beam.score) for beam in self._beams.complete]

    def _make_delta(self, beam: CompleteBeam) -> OutputDelta:
        first, config = self._first, self._given.gen_config
        assert first is not None and first.usage is not None and first.timings is not None
        token_ids = beam.token_ids[:-1] if beam.is_ended else beam.token_ids
        detokenizer = IncrementalDetokenizer(
            self._engine.tokenizer,
            skip_special_tokens=config.skip_special_tokens,
            kept_tokens=self._given.kept_tokens,
            spaces_between_special_tokens=config.spaces_between_special_tokens,
        )
        return replace(
            first,
            text=detokenizer.add(token_ids) + detokenizer.flush(),
            token_ids=token_ids,
            logprobs=None,
            finish_reason="stop" if beam.is_ended else "length",
            mean_logprob=beam.logprob / len(beam.token_ids),
            usage=replace(first.usage, completion_tokens=len(token_ids), reasoning_tokens=0),
            timings=self._time(first.timings),
        )

    def _time(self, first: StageTimings) -> StageTimings:
        total_s = time.perf_counter() - self._started_at
        return replace(first, decode_s=max(0.0, total_s - first.time_to_first_token_s), total_s=total_s)

    def close(self) -> None:
        """Let the engine give back what it keeps for texts that are still to come."""
        for group_id in self.prompts.group_ids:
            self._engine.core.end_group(group_id)

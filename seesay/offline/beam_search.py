"""Beam search over an engine. Each text that goes on is a request for one token, in a group with the others: it begins
with the KV blocks of the text that it continues, so each costs one token.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from seesay.config import BeamSearchParams, GenerationConfig
from seesay.engine.front.response import AnswerBuilder, Response
from seesay.engine.front.shared_prompts import SharedPrompts
from seesay.errors import ErrorCode, RequestError
from seesay.offline.beams import BeamSearch, CompleteBeam
from seesay.processors.text.detokenize import IncrementalDetokenizer
from seesay.values import GenerationRequest, OutputDelta, Usage

if TYPE_CHECKING:
    from seesay.engine.front.engine import AsyncEngine


def search_beams(
    engine: AsyncEngine, requests: Sequence[GenerationRequest | RequestError], params: BeamSearchParams
) -> list[Response]:
    """Return the best answer to each request, with the others in `choices`. All searches go on beside each other."""
    found: dict[int, Response] = {}
    arrived: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
    searches: list[_Search] = []
    asked: dict[int, tuple[_Search, int]] = {}  # request id → whose, and of which text

    def submit(search: _Search) -> None:
        for number, request_id in enumerate(search.submit(arrived.put)):
            asked[request_id] = search, number

    try:
        for index, request in enumerate(requests):
            if isinstance(request, RequestError):
                found[index] = _fail(index, request)
                continue
            searches.append(_Search(engine, index, request, params))
            submit(searches[-1])
        while asked:
            delta = arrived.get()
            if delta.finish_reason is None:
                continue
            search, number = asked.pop(delta.request_id)
            if not search.take(number, delta):
                continue
            if search.is_over:
                found[search.index] = search.make_response()
                search.close()
            else:
                submit(search)
    finally:
        for request_id in asked:
            engine.abort(request_id)
        for search in searches:
            search.close()
    return [found[index] for index in range(len(requests))]


class _Search:
    """The search of one request."""

    def __init__(self, engine: AsyncEngine, index: int, request: GenerationRequest, params: BeamSearchParams) -> None:
        self.index = index
        self._engine = engine
        self._ending_ids = () if params.ignore_eos else engine.find_ending_ids(request)
        config = GenerationConfig(max_new_tokens=1, ignore_eos=True, logprobs=params.beam_width + len(self._ending_ids))
        self._request = replace(request, gen_config=config, streams=False)
        self._prompts = SharedPrompts([self._request], keeps_blocks=True)
        self._params = params
        self._beams = BeamSearch(params, self._ending_ids, max_tokens=params.max_tokens)
        self._logprobs: dict[int, Mapping[int, float]] = {}
        self._error: Exception | None = None
        self._usage: Usage | None = None

    @property
    def is_over(self) -> bool:
        return self._beams.is_over or self._error is not None

    def submit(self, put: Callable[[OutputDelta], None]) -> list[int]:
        """Ask for the next token of each text."""
        self._logprobs.clear()
        requests = [replace(self._request, continuation=beam.token_ids) for beam in self._beams.running]
        self._num_left = len(requests)
        return self._engine.submit_batch(requests, put, self._prompts)

    def take(self, number: int, delta: OutputDelta) -> bool:
        """Take the token of text `number`. Returns whether all are there."""
        self._num_left -= 1
        if delta.error is not None or not delta.logprobs:
            aborted = RequestError(ErrorCode.ABORTED, "the request was aborted")
            self._error = self._error or delta.error or aborted
        else:
            self._logprobs[number] = delta.logprobs[0]
        if self._usage is None and delta.usage is not None and self._error is None:
            self._begin(delta.usage)
        if self._num_left:
            return False
        if self._error is None:
            self._beams.advance([self._logprobs[index] for index in range(len(self._logprobs))])
        return True

    def _begin(self, usage: Usage) -> None:
        """Begin the search, at the first token, when the length of the prompt is known."""
        self._usage = usage
        longest = min(self._params.max_tokens, self._engine.session_len - usage.prompt_tokens)
        self._beams = BeamSearch(self._params, self._ending_ids, max_tokens=longest)

    def make_response(self) -> Response:
        """The best answer, with the others as its other choices."""
        if self._error is not None:
            return _fail(self.index, self._error)
        answers = [self._make_answer(number, beam) for number, beam in enumerate(self._beams.complete)]
        answers[0].other_choices = answers[1:]
        return answers[0]

    def _make_answer(self, number: int, beam: CompleteBeam) -> Response:
        assert self._usage is not None
        token_ids = beam.token_ids[:-1] if beam.is_ended else beam.token_ids
        detokenizer = IncrementalDetokenizer(self._engine.tokenizer, skip_special_tokens=True)
        return Response(
            text=detokenizer.add(token_ids) + detokenizer.flush(),
            generate_token_len=len(token_ids),
            input_token_len=self._usage.prompt_tokens,
            finish_reason="stop" if beam.is_ended else "length",
            token_ids=list(token_ids),
            mean_logprob=beam.logprob / len(beam.token_ids),
            score=beam.score,
            index=self.index,
            choice_index=number,
            usage=replace(self._usage, completion_tokens=len(token_ids)),
        )

    def close(self) -> None:
        """Let the engine give back what it keeps for texts that are still to come."""
        for group_id in self._prompts.group_ids:
            self._engine.core.end_group(group_id)


def _fail(index: int, error: Exception) -> Response:
    return AnswerBuilder(index).add(OutputDelta(request_id=-1, finish_reason="error", error=error))

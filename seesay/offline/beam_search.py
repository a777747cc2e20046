"""Beam searches that one thread waits for."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import TYPE_CHECKING

from seesay.config import BeamSearchParams
from seesay.engine.front.beam_request import BeamRequest
from seesay.engine.front.response import AnswerBuilder, Response
from seesay.errors import RequestError
from seesay.values import GenerationRequest, OutputDelta

if TYPE_CHECKING:
    from seesay.engine.front.engine import AsyncEngine


def search_beams(
    engine: AsyncEngine, requests: Sequence[GenerationRequest | RequestError], params: BeamSearchParams
) -> list[Response]:
    """Return the best answer to each request, with the others in `choices`. All searches go on beside each other."""
    found: dict[int, Response] = {}
    arrived: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
    searches: dict[int, BeamRequest] = {}
    asked: dict[int, tuple[int, int]] = {}  # request id → index of the search, number of the text

    def submit(index: int) -> None:
        search = searches[index]
        ids = engine.submit_batch(search.make_requests(), arrived.put, search.prompts)
        asked.update({request_id: (index, number) for number, request_id in enumerate(ids)})

    try:
        for index, request in enumerate(requests):
            if isinstance(request, RequestError):
                found[index] = _fail(index, request)
                continue
            searches[index] = BeamRequest(engine, request, params)
            submit(index)
        while asked:
            delta = arrived.get()
            if delta.finish_reason is None:
                continue
            index, number = asked.pop(delta.request_id)
            search = searches[index]
            if not search.take(number, delta):
                continue
            if search.is_over:
                found[index] = _make_response(index, search)
                search.close()
            else:
                submit(index)
    finally:
        for request_id in asked:
            engine.abort(request_id)
        for search in searches.values():
            search.close()
    return [found[index] for index in range(len(requests))]


def _make_response(index: int, search: BeamRequest) -> Response:
    """Return the best answer, with the others as its other choices."""
    if search.error is not None:
        return _fail(index, search.error)
    answers = []
    for number, (delta, score) in enumerate(search.make_answers()):
        answer = AnswerBuilder(index, session_id=-1, choice_index=number).add(delta)
        answer.score = score
        answers.append(answer)
    answers[0].other_choices = answers[1:]
    return answers[0]


def _fail(index: int, error: Exception) -> Response:
    return AnswerBuilder(index).add(OutputDelta(request_id=-1, finish_reason="error", error=error))

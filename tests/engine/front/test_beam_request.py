"""The beam search of one request: what it asks of the engine, and the answers that it makes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from beam_script import END, LOGPROBS, PARAMS, A, B, ScriptedEngine, make_final, make_request

from seesay.config import GenerationConfig
from seesay.engine.front.beam_request import BeamRequest
from seesay.errors import ErrorCode, RequestError
from seesay.values import OutputDelta, Usage


def take_all(search: BeamRequest, *, first: OutputDelta | None = None) -> None:
    """Answer all requests of the search, those of a step in the opposite order, until it is over."""
    is_first = True
    while not search.is_over:
        requests = list(enumerate(search.make_requests()))
        for number, request in reversed(requests):
            delta = make_final(number, logprobs=(LOGPROBS[min(len(request.continuation), 1)],))
            given = first if is_first and first is not None else delta
            assert search.take(number, given) == (number == 0)
            is_first = False


def test_requests_are_for_one_token_of_each_text() -> None:
    engine: Any = ScriptedEngine(ending_ids=(END,))
    search = BeamRequest(engine, replace(make_request(), owner="me"), PARAMS)
    [request] = search.make_requests()
    assert request.continuation == () and request.owner == "me" and not request.streams
    assert request.gen_config == GenerationConfig(max_new_tokens=1, ignore_eos=True, logprobs=3)
    assert search.take(0, make_final(0, logprobs=({A: -0.2, B: -0.9, END: -5.0},)))
    assert [request.continuation for request in search.make_requests()] == [(A,), (B,)]


def test_without_an_end_fewer_log_probabilities_are_needed() -> None:
    engine: Any = ScriptedEngine(ending_ids=(END,))
    search = BeamRequest(engine, make_request(), replace(PARAMS, ignore_eos=True))
    assert [request.gen_config.logprobs for request in search.make_requests()] == [2]
    search.take(0, make_final(0, logprobs=({END: -0.1, A: -0.2},)))
    assert [request.continuation for request in search.make_requests()] == [(END,), (A,)]


def test_answers_are_the_best_texts_with_the_counts_of_the_first_request() -> None:
    engine: Any = ScriptedEngine()
    search = BeamRequest(engine, make_request(), PARAMS)
    take_all(search)
    best, second = search.make_answers()
    assert [(answer.delta.text, answer.delta.token_ids) for answer in (best, second)] == [
        ("aaa", (A, A, A)),
        ("aab", (A, A, B)),
    ]
    assert math.isclose(best.score, -1.0 / 3) and math.isclose(best.delta.mean_logprob or 0.0, -1.0 / 3)
    assert best.delta.finish_reason == "length" and best.delta.logprobs is None
    assert best.delta.usage == Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=2)
    timings = best.delta.timings
    assert timings is not None and (timings.prefill_s, timings.time_to_first_token_s) == (0.25, 0.5)
    assert 0 < timings.total_s < 60 and timings.decode_s == max(0.0, timings.total_s - 0.5)


def test_a_text_that_ended_is_without_its_end() -> None:
    engine: Any = ScriptedEngine(ending_ids=(END,))
    search = BeamRequest(engine, make_request(), replace(PARAMS, beam_width=1, early_stopping=True))
    search.make_requests()
    search.take(0, make_final(0, logprobs=({A: -0.2, B: -0.9},)))
    search.make_requests()
    search.take(0, make_final(0, logprobs=({END: -0.4, B: -0.9},)))
    [answer] = search.make_answers()
    assert (answer.delta.text, answer.delta.token_ids, answer.delta.finish_reason) == ("a", (A,), "stop")
    assert answer.delta.usage is not None and answer.delta.usage.completion_tokens == 1
    assert math.isclose(answer.delta.mean_logprob or 0.0, -0.3), "the end counts"


def test_texts_are_no_longer_than_the_context_has_room_for() -> None:
    """It is known with the first token: the prompt has seven."""
    engine: Any = ScriptedEngine(session_len=9)
    search = BeamRequest(engine, make_request(), PARAMS)
    take_all(search)
    assert [answer.delta.token_ids for answer in search.make_answers()] == [(A, A), (A, B)]


def test_options_of_the_text_are_those_of_the_request() -> None:
    for skips, expected in ((True, "aaa"), (False, "aa<|im_end|>")):
        engine: Any = ScriptedEngine()
        given = replace(make_request(), gen_config=GenerationConfig(skip_special_tokens=skips))
        search = BeamRequest(engine, given, replace(PARAMS, beam_width=1))
        for found in ({A: -0.1}, {A: -0.1}, {A: -0.1} if skips else {END: -0.1}):
            search.make_requests()
            search.take(0, make_final(0, logprobs=(found,)))
        assert [answer.delta.text for answer in search.make_answers()] == [expected]


def test_the_first_error_is_that_of_the_search() -> None:
    engine: Any = ScriptedEngine()
    search = BeamRequest(engine, make_request(), PARAMS)
    search.make_requests()
    search.take(0, make_final(0, logprobs=(LOGPROBS[0],)))
    search.make_requests()
    error = RequestError(ErrorCode.INVALID_REQUEST, "no room")
    assert not search.take(0, make_final(0, finish_reason="error", error=error)) and search.is_over
    assert search.take(1, make_final(1, finish_reason="abort")) and search.error is error


def test_what_was_aborted_is_an_error() -> None:
    engine: Any = ScriptedEngine()
    search = BeamRequest(engine, make_request(), PARAMS)
    search.make_requests()
    assert search.take(0, make_final(0, finish_reason="abort")) and search.is_over
    assert isinstance(search.error, RequestError) and search.error.code is ErrorCode.ABORTED

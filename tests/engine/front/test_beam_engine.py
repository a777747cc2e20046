"""Beam searches for an event loop: which texts they hand to the engine, and who gets which answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from beam_script import CLOSED, LOGPROBS, PARAMS, A, B, ScriptedEngine, make_final, make_request

from seesay.engine.front.beam_engine import BeamEngine
from seesay.engine.front.shared_prompts import SharedPrompts
from seesay.values import OutputDelta


class Batch:
    """A `BeamEngine`, and what it gave, by request."""

    def __init__(self, engine: Any) -> None:
        self.beams = BeamEngine(engine, PARAMS)
        self.found: list[OutputDelta] = []

    def submit(self, number: int) -> list[int]:
        return self.beams.submit_batch([make_request()] * number, self.found.append, SharedPrompts())

    def outcome(self) -> list[tuple[int, str, Any]]:
        return [(delta.request_id, delta.text, delta.finish_reason) for delta in self.found]


async def test_requests_that_follow_one_another_get_the_answers_of_one_search() -> None:
    engine: Any = ScriptedEngine()
    batch = Batch(engine)
    assert batch.submit(3) == [0, 1, 2] and batch.submit(1) == [3]
    assert len(engine.requests) == 2, "a search begins with one text"
    await engine.answer_all()
    ours, theirs = batch.outcome()[:2], batch.outcome()[2:]
    assert ours == [(0, "aaa", "length"), (1, "aab", "length")]
    assert theirs == [(2, "aaa", "length"), (3, "aab", "length")]
    assert len(engine.ended_groups) == 2 and not engine.aborted
    assert len(engine.requests) == 2 * (1 + 2 + 2)


async def test_a_search_has_as_many_texts_at_a_time_as_requests() -> None:
    engine: Any = ScriptedEngine()
    batch = Batch(engine)
    batch.submit(1)
    await engine.say(0)
    assert [request.continuation for request in engine.requests[1:]] == [(A,)]
    batch.submit(1)
    assert [request.continuation for request in engine.requests[1:]] == [(A,), (B,)]
    await engine.say(1)
    assert len(engine.requests) == 3, "the step is not complete"
    await engine.say(2)
    assert [request.continuation for request in engine.requests[3:]] == [(A, A), (A, B)]


async def test_a_request_that_comes_when_the_search_is_over_has_its_answer() -> None:
    engine: Any = ScriptedEngine()
    batch = Batch(engine)
    batch.submit(1)
    await engine.answer_all()
    assert batch.outcome() == [(0, "aaa", "length")]
    batch.submit(1)
    assert batch.outcome() == [(0, "aaa", "length"), (1, "aab", "length")]


async def test_an_abort_ends_the_whole_search_once() -> None:
    engine: Any = ScriptedEngine()
    batch = Batch(engine)
    batch.submit(3)
    await engine.say(0)
    batch.beams.abort(1)
    assert sorted(batch.outcome()) == [(0, "", "abort"), (1, "", "abort")]
    assert engine.aborted == [2, 3] and len(engine.ended_groups) == 1
    batch.beams.abort(0)
    for number in (2, 3):
        await engine.say(number, finish_reason="abort", logprobs=None)
    assert len(batch.found) == 2 and len(engine.requests) == 4, "what was aborted asks for nothing more"
    await engine.say(1)
    assert len(engine.requests) == 5, "the other search goes on"


async def test_a_delta_that_is_not_the_last_one_is_not_taken() -> None:
    engine: Any = ScriptedEngine()
    batch = Batch(engine)
    batch.submit(1)
    await engine.say(0, finish_reason=None)
    assert len(engine.requests) == 1 and not batch.found


@pytest.mark.parametrize("is_closed", [True, False])
async def test_an_error_is_that_of_all_requests_of_the_search(is_closed: bool) -> None:
    engine: Any = ScriptedEngine()
    engine.is_closed = is_closed
    batch = Batch(engine)
    batch.submit(2)
    if not is_closed:
        await engine.say(0, finish_reason="error", error=CLOSED)
    assert batch.outcome() == [(0, "", "error"), (1, "", "error")]
    assert all(delta.error is CLOSED for delta in batch.found)


async def test_an_engine_that_is_closed_in_the_middle_ends_the_search() -> None:
    engine: Any = ScriptedEngine()
    batch = Batch(engine)
    batch.submit(2)
    engine.is_closed = True
    await engine.say(0)
    assert batch.outcome() == [(0, "", "error"), (1, "", "error")]


def test_a_delta_behind_the_end_of_the_event_loop_is_dropped() -> None:
    engine: Any = ScriptedEngine()
    batch = Batch(engine)

    async def begin() -> None:
        batch.submit(1)

    asyncio.run(begin())
    engine._sinks[0](make_final(0, logprobs=(LOGPROBS[0],)))
    assert not batch.found

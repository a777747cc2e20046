"""Requests to an engine of several ranks, whose processes tests end meanwhile."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any

from asking import join, make_picture, parse
from waiting import wait_until

from seesay.engine.front.engine import AsyncEngine
from seesay.engine.front.response import Response
from seesay.engine.process.remote_core import ProcessCore
from seesay.errors import ErrorCode, RequestError
from seesay.values import GenerationRequest, OutputDelta

LONG = 1500
"""Tokens of an answer that is not complete before a process is ended."""
PROMPTS: list[Any] = ["go on", "the game is in the frame", ("what is it?", make_picture(60, 50, 1))]


def pid_of(engine: AsyncEngine) -> int | None:
    assert isinstance(engine.core, ProcessCore)
    return engine.core.pid


def wait_for_pid(engine: AsyncEngine, *others: int) -> int:
    """Return the id of the engine process, once there is one that is not one of `others`."""
    wait_until(lambda: pid_of(engine) not in (None, *others), "the engine is started")
    pid = pid_of(engine)
    assert pid is not None
    return pid


def submit(engine: AsyncEngine, requests: Sequence[GenerationRequest]) -> tuple[list[int], queue.SimpleQueue[Any]]:
    arrived: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
    return engine.submit_batch(requests, arrived.put), arrived


def read(ids: Sequence[int], arrived: queue.SimpleQueue[Any]) -> list[Response]:
    """The whole answers of requests that were submitted: each has one final delta, and none behind it."""
    deltas: dict[int, list[OutputDelta]] = {request_id: [] for request_id in ids}
    left = set(ids)
    while left:
        delta = arrived.get(timeout=120)
        assert delta.request_id in left, "an output behind the final one"
        deltas[delta.request_id].append(delta)
        if delta.finish_reason is not None:
            left.remove(delta.request_id)
    assert arrived.empty(), "an output behind the final one"
    return [join(found) for found in deltas.values()]


def ask(engine: AsyncEngine) -> list[list[int]]:
    answers = read(*submit(engine, parse(PROMPTS, max_new_tokens=6, ignore_eos=True)))
    assert all(one.finish_reason == "length" for one in answers), answers
    return [one.token_ids for one in answers]


def read_unfinished(ids: Sequence[int], arrived: queue.SimpleQueue[Any]) -> list[Response]:
    """The answers that have not ended by themselves: on a busy machine, some end just before what a test breaks. At
    least one has not."""
    found = [one for one in read(ids, arrived) if one.finish_reason != "length"]
    assert found
    return found


def check_lost(answers: Sequence[Response], *words: str) -> None:
    """All requests ended with an error that says why."""
    for one in answers:
        assert isinstance(one.error, RequestError) and one.error.code is ErrorCode.INTERNAL, one
        assert any(each in str(one.error) for each in words), one.error

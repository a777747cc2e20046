"""Beam searches for an event loop: they answer the requests of an `AsyncRequestBatch`."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from seesay.config import BeamSearchParams
from seesay.engine.front.beam_request import BeamRequest
from seesay.engine.front.live_answer import OutputSink
from seesay.engine.front.shared_prompts import SharedPrompts
from seesay.errors import RequestError
from seesay.values import GenerationRequest, OutputDelta

if TYPE_CHECKING:
    from seesay.engine.front.engine import AsyncEngine


class BeamEngine:
    """Answers each `params.beam_width` requests that follow one another, which have the same prompt, by one search: its
    answers are theirs, the best first. Each comes as a whole.

    A search computes as many texts at a time as it was given requests so far, so it keeps to the places that its
    caller has. Made and used in one event loop.
    """

    def __init__(self, engine: AsyncEngine, params: BeamSearchParams) -> None:
        self._engine = engine
        self._params = params
        self._searches: list[_Search] = []
        self._num_submitted = 0

    def submit_batch(
        self, requests: Sequence[GenerationRequest], on_output: OutputSink, _prompts: SharedPrompts
    ) -> list[int]:
        """Begin or widen the searches of these requests. Returns ids that are unique in this object."""
        ids = []
        for request in requests:
            request_id = self._num_submitted
            self._num_submitted += 1
            if request_id % self._params.beam_width == 0:
                self._searches.append(_Search(self._engine, request, self._params, on_output))
            self._searches[-1].widen(request_id)
            ids.append(request_id)
        return ids

    def abort(self, request_id: int) -> None:
        """Abort the whole search of a request."""
        self._searches[request_id // self._params.beam_width].abort()


class _Search:
    """One search, and the requests that get its answers."""

    def __init__(
        self, engine: AsyncEngine, request: GenerationRequest, params: BeamSearchParams, on_output: OutputSink
    ) -> None:
        self._engine = engine
        self._width = params.beam_width
        self._on_output = on_output
        self._loop = asyncio.get_running_loop()
        self._search = BeamRequest(engine, request, params)
        self._ids: list[int] = []
        self._waiting = deque(enumerate(self._search.make_requests()))
        self._running: dict[int, int] = {}  # request id → number of the text
        self._outcome: list[OutputDelta] | None = None  # by number of the answer, once the search is over

    def widen(self, request_id: int) -> None:
        """Compute one more text at a time, and give the next answer to this request."""
        self._ids.append(request_id)
        if self._outcome is None:
            self._go_on()
        else:
            self._answer(len(self._ids) - 1)

    def abort(self) -> None:
        if self._outcome is None:
            aborted = OutputDelta(request_id=-1, finish_reason="abort")
            self._end([aborted] * self._width)

    def _go_on(self) -> None:
        """Hand texts to the engine, as many as may be computed at a time."""
        try:
            while self._waiting and len(self._running) < len(self._ids):
                number, request = self._waiting.popleft()
                [request_id] = self._engine.submit_batch([request], self._put, self._search.prompts)
                self._running[request_id] = number
        except RequestError as error:  # the engine is closed
            self._fail(error)

    def _put(self, delta: OutputDelta) -> None:
        """Take a delta in the event loop. Called by threads of the engine."""
        if delta.finish_reason is not None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed: there is no reader any more
                self._loop.call_soon_threadsafe(self._take, delta)

    def _take(self, delta: OutputDelta) -> None:
        number = self._running.pop(delta.request_id, None)
        if number is None or self._outcome is not None:  # aborted
            return
        if self._search.take(number, delta) and not self._search.is_over:
            self._waiting.extend(enumerate(self._search.make_requests()))
        if self._search.error is not None:
            self._fail(self._search.error)
        elif self._search.is_over:
            self._end([answer.delta for answer in self._search.make_answers()])
        else:
            self._go_on()

    def _fail(self, error: Exception) -> None:
        self._end([OutputDelta(request_id=-1, finish_reason="error", error=error)] * self._width)

    def _end(self, outcome: list[OutputDelta]) -> None:
        self._outcome = outcome
        self._waiting.clear()
        for request_id in self._running:
            self._engine.abort(request_id)
        self._search.close()
        for index in range(len(self._ids)):
            self._answer(index)

    def _answer(self, index: int) -> None:
        assert self._outcome is not None
        self._on_output(replace(self._outcome[index], request_id=self._ids[index]))

"""Submit the requests of HTTP routes to the engine: limit, time and measure them, abort them when the client leaves.

The routes of all APIs go through this module. It does not know the wire format of any API.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from seesay.config import BeamSearchParams
from seesay.engine.front.beam_engine import BeamEngine
from seesay.engine.front.request_batch import AsyncRequestBatch
from seesay.errors import ErrorCode, RequestError
from seesay.serving.errors import ApiError
from seesay.serving.requests.caller import NOBODY, Caller
from seesay.serving.requests.field_names import ENGINE_NAMES, FieldNames
from seesay.serving.settings import ServerSettings
from seesay.serving.traffic.places import Places, Ticket
from seesay.system.hashing import digest
from seesay.values import GenerationRequest, MediaReport, OutputDelta, StageTimings, Usage, find_prompt_logprobs

if TYPE_CHECKING:
    from starlette.types import Receive

    from seesay.engine.front.engine import AsyncEngine
    from seesay.serving.traffic.metrics import ServerMetrics
    from seesay.values.prompt_logprobs import PromptLogprobs

logger = logging.getLogger("seesay")

T = TypeVar("T")

_ABORTED = 499
"""Nginx's status of a request that its client has ended: a 503 would be sent again by clients and distributors."""


class ClientGoneError(Exception):
    """The client closed its connection before its answer was complete."""


@dataclass(slots=True)
class Answer:
    """Hold a complete answer: all deltas of one request, joined. `last` is the final delta."""

    text: str
    token_ids: list[int]
    logprobs: list[dict[int, float]]
    last: OutputDelta
    prompt_logprobs: PromptLogprobs | None = None

    @property
    def finish_reason(self) -> str:
        """'stop' or 'length'."""
        assert self.last.finish_reason is not None
        return self.last.finish_reason

    @classmethod
    def join(cls, deltas: Sequence[OutputDelta]) -> Answer:
        """Join the deltas of one request, in order."""
        return cls(
            text="".join(delta.text for delta in deltas),
            token_ids=[token_id for delta in deltas for token_id in delta.token_ids],
            logprobs=[dict(entry) for delta in deltas for entry in delta.logprobs or ()],
            last=deltas[-1],
            prompt_logprobs=find_prompt_logprobs(deltas),
        )


@dataclass(slots=True)
class Tally:
    """Sum up the usage of all answers to one HTTP request. `num_per_prompt` answers share a prompt; its tokens are
    counted once."""

    num_per_prompt: int = 1
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    media_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    timings: StageTimings | None = field(default=None)
    media: list[MediaReport] = field(default_factory=list)

    def add(self, index: int, last: OutputDelta) -> None:
        """Add the final delta of answer `index`. The timings kept are those of the slowest answer."""
        usage = last.usage or Usage()
        self.completion_tokens += usage.completion_tokens
        self.reasoning_tokens += usage.reasoning_tokens
        self.accepted_prediction_tokens += usage.accepted_prediction_tokens
        self.rejected_prediction_tokens += usage.rejected_prediction_tokens
        if index % self.num_per_prompt == 0:
            self.prompt_tokens += usage.prompt_tokens
            self.cached_tokens += usage.cached_tokens
            self.media_tokens += usage.media_tokens
            self.audio_tokens += usage.audio_tokens
            self.media.extend(last.media)
        if last.timings is not None and (self.timings is None or last.timings.total_s > self.timings.total_s):
            self.timings = last.timings


class Answering:
    """Submit requests to the engine for HTTP routes. Event loops of several threads may share it.

    The engine holds at most `max_concurrent_requests` HTTP requests, and at most `max_sequences_per_key` sequences of
    one caller. Further requests wait here (`Places`).
    """

    def __init__(self, engine: AsyncEngine, settings: ServerSettings, metrics: ServerMetrics) -> None:
        self._engine = engine
        self._settings = settings
        self._metrics = metrics
        self._places = Places(settings.max_concurrent_requests, settings.max_sequences_per_key)
        self._running: dict[AsyncRequestBatch, Caller] = {}

    @property
    def num_running(self) -> int:
        """Number of HTTP requests that are being answered, or wait for a place."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Number of HTTP requests that have no sequence in the engine yet."""
        return self._places.num_waiting

    def end_all(self, error: ApiError) -> None:
        """End every request that is being answered with `error`."""
        for running in list(self._running):
            running.end(error)

    def abort(self, turn: Hashable, rid: str | None) -> int:
        """End the requests of the caller with this `turn` that have this id, or all of them, and return how many. May
        be called from any thread."""
        running = [(batch, own) for batch, own in list(self._running.items()) if own.turn == turn]
        found = [batch for batch, own in running if rid is None or rid in (own.rid, own.request_id, own.answer_id)]
        for batch in found:
            batch.end(ApiError(_ABORTED, "the request was aborted", code=ErrorCode.ABORTED.value))
        return len(found)

    def _own(self, request: GenerationRequest, caller: Caller) -> GenerationRequest:
        """Return a request with its owner, and with the adapter that it names, if that is one. What one key has
        computed is cached for that key alone, unless all keys are one tenant's."""
        salt = request.cache_salt
        if isinstance(caller.turn, bytes) and not self._settings.share_caches:
            salt = digest(caller.turn, salt.encode("utf-8", "surrogatepass")).hex()
        adapter = request.adapter_name if request.adapter_name in self._engine.adapter_names else None
        return replace(request, owner=caller.turn, cache_salt=salt, adapter_name=adapter)

    async def deltas(
        self,
        requests: Sequence[GenerationRequest],
        *,
        caller: Caller = NOBODY,
        names: FieldNames = ENGINE_NAMES,
        beams: BeamSearchParams | None = None,
    ) -> AsyncGenerator[tuple[int, OutputDelta], None]:
        """Yield (index of the request, delta) until every request has had its final delta ('stop' or 'length').

        names: the client's names of prompts and options; errors use them. beams: the search whose answers these are,
        as many to each prompt as it is wide.

        Closing the generator or cancelling it aborts the requests that still run. Raises `ApiError` when a request
        fails, `request_timeout_s` has passed, or the server shuts down, and aborts the other requests.
        """
        engine = self._engine if beams is None else BeamEngine(self._engine, beams)
        batch = AsyncRequestBatch(engine, [self._own(request, caller) for request in requests])
        timeout_s = self._settings.request_timeout_s
        timer = asyncio.get_running_loop().call_later(timeout_s, batch.end, _timed_out(timeout_s))
        ticket = self._places.enter(
            caller.turn,
            lambda: batch.call_soon(lambda: batch.submit(ticket.take())),
            priority=requests[0].priority,
        )
        self._running[batch] = caller
        if beams is None:
            self._tell_progress(caller, ticket, batch)
        try:
            self._places.ask(ticket, len(requests))
            async with aclosing(batch.submitted_deltas()) as deltas:
                async for index, delta in deltas:
                    if delta.finish_reason is not None:
                        self._places.give_back(ticket)
                        self._metrics.observe_answer(requests[index], delta)
                        if caller.trace is not None:
                            caller.trace.add_answer(index, delta)
                        if delta.finish_reason in ("error", "abort"):
                            raise self._explain(delta, caller.request_id, names, index)
                    yield index, delta
        except RequestError as error:  # the engine is closed
            raise ApiError.from_error(error) from error
        finally:
            timer.cancel()
            del self._running[batch]
            self._metrics.observe_aborted(batch.num_running)
            self._places.leave(ticket)

    async def collect(
        self,
        requests: Sequence[GenerationRequest],
        *,
        receive: Receive,
        caller: Caller = NOBODY,
        names: FieldNames = ENGINE_NAMES,
        beams: BeamSearchParams | None = None,
        watch: Callable[[OutputDelta], None] | None = None,
    ) -> list[Answer]:
        """Return the complete answers, in the order of the requests. Arguments and errors are those of `deltas`.

        receive: the ASGI callable of the HTTP request, whose body has been read. When it reports that the client
        disconnected, the requests are aborted and `ClientGoneError` is raised.
        watch: called with each delta; the requests are aborted if it raises.
        """
        deltas = self.deltas(requests, caller=caller, names=names, beams=beams)
        return await unless_gone(receive, self._collect(len(requests), deltas, watch))

    async def _collect(
        self,
        count: int,
        deltas: AsyncGenerator[tuple[int, OutputDelta], None],
        watch: Callable[[OutputDelta], None] | None,
    ) -> list[Answer]:
        parts: list[list[OutputDelta]] = [[] for _ in range(count)]
        async with aclosing(deltas):
            async for index, delta in deltas:
                parts[index].append(delta)
                if watch is not None:
                    watch(delta)
        return [Answer.join(deltas_of_one) for deltas_of_one in parts]

    def _tell_progress(self, caller: Caller, ticket: Ticket, batch: AsyncRequestBatch) -> None:
        has_admitted = self._engine.has_admitted
        if caller.progress is not None:
            caller.progress.is_queued = lambda: (
                not ticket.is_inside or (batch.num_running > 0 and all(map(has_admitted, batch.running_ids)))
            )

    def _explain(self, delta: OutputDelta, request_id: str | None, names: FieldNames, index: int) -> ApiError:
        if delta.error is None:
            return ApiError.from_error(RequestError(ErrorCode.ABORTED, "the request was aborted"))
        error = names.explain(delta.error, index=index, request_id=request_id)
        if error.status_code >= 500 and error.code != ErrorCode.SLEEPING:  # asked for, and clients try again
            logger.error("%s failed: %s", request_id, delta.error)
        return error


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """Return the result of `work`. If the client disconnects first, cancel `work` and raise `ClientGoneError`."""
    task = asyncio.current_task()
    assert task is not None
    is_over = is_gone = False

    def leave(watcher: asyncio.Future[None]) -> None:
        nonlocal is_gone
        if not (is_over or watcher.cancelled()):
            is_gone = True
            task.cancel()

    watcher = asyncio.ensure_future(wait_until_gone(receive))
    watcher.add_done_callback(leave)
    try:
        return await work
    except BaseException as error:
        # Of two cancellations, that of somebody else counts.
        if is_gone and not (task.uncancel() and isinstance(error, asyncio.CancelledError)):
            raise ClientGoneError from None
        raise
    finally:
        is_over = True
        watcher.cancel()


async def wait_until_gone(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def deltas_until(
    deltas: AsyncGenerator[tuple[int, OutputDelta], None], cancelled: asyncio.Event
) -> AsyncGenerator[OutputDelta, None]:
    """Yield the deltas until they end or `cancelled` is set. Closing this generator closes them, which aborts their
    request."""
    stop = asyncio.ensure_future(cancelled.wait())
    try:
        async with aclosing(deltas):
            while True:
                following = asyncio.ensure_future(anext(deltas, None))
                try:
                    await asyncio.wait((following, stop), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not following.done():
                        following.cancel()
                        await asyncio.wait((following,))
                if following.cancelled() or (item := following.result()) is None:
                    return
                yield item[1]
    finally:
        stop.cancel()


def _timed_out(timeout_s: float) -> ApiError:
    return ApiError(
        504,
        f"no complete answer within {timeout_s:g} s (request_timeout_s)",
        kind="server_error",
        code="request_timeout",
    )

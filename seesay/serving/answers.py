"""Submit the requests of HTTP routes to the engine: limit, time and measure them, abort them when the client leaves.

The routes of all APIs go through this module. It does not know the wire format of any API.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Hashable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from seesay.errors import ErrorCode, RequestError
from seesay.serving.caller import NOBODY, Caller
from seesay.serving.errors import ApiError, name_prompt
from seesay.serving.places import Places
from seesay.serving.settings import ServerSettings
from seesay.values import GenerationRequest, MediaReport, OutputDelta, StageTimings, Usage

if TYPE_CHECKING:
    from starlette.types import Receive

    from seesay.engine.engine import AsyncEngine
    from seesay.serving.metrics import ServerMetrics

logger = logging.getLogger("seesay")

_PLACES = None  # event in the queue of deltas: places were granted
T = TypeVar("T")


class ClientGoneError(Exception):
    """The client closed its connection before its answer was complete."""


@dataclass(slots=True)
class Answer:
    """Hold a complete answer: all deltas of one request, joined. `last` is the final delta."""

    text: str
    token_ids: list[int]
    logprobs: list[dict[int, float]]
    last: OutputDelta

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
        )


@dataclass(slots=True)
class Tally:
    """Sum up the usage of all answers to one HTTP request. `num_per_prompt` answers share a prompt; its tokens are
    counted once."""

    num_per_prompt: int = 1
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    media_tokens: int = 0
    timings: StageTimings | None = field(default=None)
    media: list[MediaReport] = field(default_factory=list)

    def add(self, index: int, last: OutputDelta) -> None:
        """Add the final delta of answer `index`. The timings kept are those of the slowest answer."""
        usage = last.usage or Usage()
        self.completion_tokens += usage.completion_tokens
        if index % self.num_per_prompt == 0:
            self.prompt_tokens += usage.prompt_tokens
            self.cached_tokens += usage.cached_tokens
            self.media_tokens += usage.media_tokens
            self.media.extend(last.media)
        if last.timings is not None and (self.timings is None or last.timings.total_s > self.timings.total_s):
            self.timings = last.timings


class _Outbox:
    """Carry deltas from the engine's threads to the event loop. One wake-up delivers all deltas that are waiting."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[tuple[asyncio.Queue[Any], OutputDelta]] = deque()
        self._is_scheduled = False

    def put(self, queue: asyncio.Queue[Any], delta: OutputDelta) -> None:
        self._waiting.append((queue, delta))
        if not self._is_scheduled:
            self._is_scheduled = True
            with contextlib.suppress(RuntimeError):  # the event loop is closed, so nobody waits for this delta
                self.loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        # Clear the flag first: a delta that is put from now on is either handed out below or schedules another call.
        self._is_scheduled = False
        while self._waiting:
            queue, delta = self._waiting.popleft()
            queue.put_nowait(delta)


class _Running:
    """Hold the engine requests of one HTTP request."""

    def __init__(self, engine: AsyncEngine, owner: Hashable) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self.owner = owner
        self.queue: asyncio.Queue[OutputDelta | ApiError | None] = asyncio.Queue()
        self.index_of: dict[int, int] = {}  # request id → index, while it runs

    def put(self, event: ApiError | None) -> None:
        """Queue an event. Thread-safe: a place may come from a request that ended in the event loop of another
        thread."""
        with contextlib.suppress(RuntimeError):  # the event loop is closed, so nobody reads the queue
            self._loop.call_soon_threadsafe(self.queue.put_nowait, event)

    def abort(self) -> None:
        for request_id in self.index_of:
            self._engine.abort(request_id)


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
        self._running: set[_Running] = set()
        self._outbox: _Outbox | None = None

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
            running.put(error)

    async def deltas(
        self,
        requests: Sequence[GenerationRequest],
        *,
        caller: Caller = NOBODY,
        fields: Sequence[str] = ("messages",),
    ) -> AsyncGenerator[tuple[int, OutputDelta], None]:
        """Yield (index of the request, delta) until every request has had its final delta ('stop' or 'length').

        fields: the API's names for the prompt of each request, or one name for all; errors use them.

        Closing the generator or cancelling it aborts the requests that still run. Raises `ApiError` when a request
        fails, `request_timeout_s` has passed, or the server shuts down, and aborts the other requests.
        """
        running = _Running(self._engine, caller.turn)
        timeout_s = self._settings.request_timeout_s
        timer = asyncio.get_running_loop().call_later(timeout_s, running.put, _timed_out(timeout_s))
        ticket = self._places.enter(caller.turn, partial(running.put, _PLACES))
        self._running.add(running)
        followers = _find_followers(requests)
        ready = deque(i for i in range(len(requests)) if not any(i in others for others in followers.values()))
        try:
            self._places.ask(ticket, len(ready))
            while ready or running.index_of:
                event = await running.queue.get()
                if isinstance(event, ApiError):
                    raise event
                if not isinstance(event, OutputDelta):
                    indexes = [ready.popleft() for _ in range(ticket.take())]
                    self._submit({i: _lead(requests[i]) if i in followers else requests[i] for i in indexes}, running)
                    continue
                index = running.index_of[event.request_id]
                if index in followers and event.finish_reason not in ("error", "abort"):
                    ready.extend(followers[index])
                    self._places.ask(ticket, len(followers.pop(index)))
                if event.finish_reason is not None:
                    del running.index_of[event.request_id]
                    self._places.give_back(ticket)
                    self._metrics.observe_answer(requests[index], event)
                    if event.finish_reason in ("error", "abort"):
                        raise self._explain(event, caller.request_id, fields[index % len(fields)])
                yield index, event
        finally:
            timer.cancel()
            self._running.discard(running)
            running.abort()
            self._metrics.observe_aborted(len(running.index_of))
            self._places.leave(ticket)

    async def collect(
        self,
        requests: Sequence[GenerationRequest],
        *,
        receive: Receive,
        caller: Caller = NOBODY,
        fields: Sequence[str] = ("messages",),
    ) -> list[Answer]:
        """Return the complete answers, in the order of the requests. Arguments and errors are those of `deltas`.

        receive: the ASGI callable of the HTTP request, whose body has been read. When it reports that the client
        disconnected, the requests are aborted and `ClientGoneError` is raised.
        """
        return await unless_gone(receive, self._collect(requests, caller, fields))

    async def _collect(
        self, requests: Sequence[GenerationRequest], caller: Caller, fields: Sequence[str]
    ) -> list[Answer]:
        parts: list[list[OutputDelta]] = [[] for _ in requests]
        async with aclosing(self.deltas(requests, caller=caller, fields=fields)) as deltas:
            async for index, delta in deltas:
                parts[index].append(delta)
        return [Answer.join(deltas_of_one) for deltas_of_one in parts]

    def _submit(self, requests: Mapping[int, GenerationRequest], running: _Running) -> None:
        """Submit requests, given by their index, to the engine."""
        loop = asyncio.get_running_loop()
        if self._outbox is None or self._outbox.loop is not loop:  # a test client has one event loop per request
            self._outbox = _Outbox(loop)
        outbox, queue = self._outbox, running.queue
        try:
            # Deltas that arrive before submit_batch returns wait in the outbox until `index_of` has their ids.
            owned = [replace(request, owner=running.owner) for request in requests.values()]
            ids = self._engine.submit_batch(owned, lambda delta: outbox.put(queue, delta))
        except RequestError as error:
            raise ApiError.from_error(error) from error
        running.index_of.update(zip(ids, requests, strict=True))

    def _explain(self, delta: OutputDelta, request_id: str | None, field: str) -> ApiError:
        if delta.error is None:
            return ApiError.from_error(RequestError(ErrorCode.ABORTED, "the request was aborted"))
        error = name_prompt(ApiError.from_error(delta.error, request_id=request_id), field)
        if error.status_code >= 500:
            logger.error("%s failed: %s", request_id, delta.error)
        return error


def choices_of(request: GenerationRequest, num_choices: int) -> list[GenerationRequest]:
    """Return `num_choices` requests for one prompt. A given seed becomes seed, seed + 1, and so on."""
    seed = request.gen_config.random_seed
    if num_choices == 1 or seed is None:
        return [request] * num_choices
    return [
        replace(request, gen_config=replace(request.gen_config, random_seed=(seed + i) % (1 << 63)))
        for i in range(num_choices)
    ]


def _find_followers(requests: Sequence[GenerationRequest]) -> dict[int, list[int]]:
    """Map the first request of each prompt to the other requests of that prompt, by index. The others wait for the
    first one's first token, and then find the prompt in the prefix cache instead of computing it again."""
    by_prompt: dict[int, list[int]] = {}
    for index, request in enumerate(requests):
        by_prompt.setdefault(id(request.prompt), []).append(index)
    return {indexes[0]: indexes[1:] for indexes in by_prompt.values() if len(indexes) > 1}


def _lead(request: GenerationRequest) -> GenerationRequest:
    """Return `request` with streaming on, so that its first token is reported at once."""
    return replace(request, streams=True)


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """Return the result of `work`. If the client disconnects first, cancel `work` and raise `ClientGoneError`."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(wait_until_gone(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        watcher.cancel()
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def wait_until_gone(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _timed_out(timeout_s: float) -> ApiError:
    return ApiError(
        504,
        f"no complete answer within {timeout_s:g} s (request_timeout_s)",
        kind="server_error",
        code="request_timeout",
    )

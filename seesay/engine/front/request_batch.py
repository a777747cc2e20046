"""The one way to ask an engine: the requests of one call are submitted together, read from one event_queue, and aborted
when their reader leaves.

`RequestBatch` reads in the calling thread, `AsyncRequestBatch` in an event loop. The latter joins the deltas of a
request that wait for it, so that an event loop that is behind catches up; everything else is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn, Protocol

from seesay.engine.front.shared_prompts import SharedPrompts
from seesay.errors import ErrorCode, RequestError
from seesay.values import GenerationRequest, OutputDelta, join_deltas

OutputSink = Callable[[OutputDelta], None]


class Engine(Protocol):
    """The part of `AsyncEngine` that answers requests."""

    def submit_batch(
        self, requests: Sequence[GenerationRequest], on_output: OutputSink, prompts: SharedPrompts, /
    ) -> list[int]: ...
    def abort(self, request_id: int) -> None: ...


Event = OutputDelta | Callable[[], None]
"""An entry of a reader's event_queue: an output, or a call that the reader is to make."""


class _Requests:
    """The requests of one call: submitted, running, over.

    A `RequestError` among the requests is answered at once, without the engine. With `streams` False each answer comes
    as a whole, in its final delta. Requests for the same prompt (the same object) are prepared once.
    """

    def __init__(
        self, engine: Engine, requests: Sequence[GenerationRequest | RequestError], *, streams: bool | None = None
    ) -> None:
        """`streams` None leaves to each request what it says."""
        self._engine = engine
        self._requests = requests
        self._streams = streams
        asked = [request for request in requests if isinstance(request, GenerationRequest)]
        self._prompts = SharedPrompts(asked if len(asked) > 1 else ())
        self._waiting = deque(i for i, request in enumerate(requests) if isinstance(request, GenerationRequest))
        self._running: dict[int, int] = {}  # request id → index
        self._process_id = os.getpid()

    @property
    def num_running(self) -> int:
        """Requests that the engine has."""
        return len(self._running)

    @property
    def running_ids(self) -> tuple[int, ...]:
        """Ids of the requests that the engine has."""
        return tuple(self._running)

    def abort(self, index: int | None = None) -> None:
        """Abort the request of this index, or all running ones. Their final deltas still follow."""
        if self._process_id != os.getpid():
            return
        for request_id, running_index in list(self._running.items()):
            if index is None or index == running_index:
                self._engine.abort(request_id)

    def _submit(self, count: int, put: OutputSink) -> None:
        indexes = [self._waiting.popleft() for _ in range(count)]
        asked = [request for index in indexes if isinstance(request := self._requests[index], GenerationRequest)]
        if self._streams is not None:
            asked = [replace(request, streams=self._streams) for request in asked]
        if asked:
            # Deltas may come before submit_batch returns; they wait in the event_queue until their ids are known here.
            ids = self._engine.submit_batch(asked, put, self._prompts)
            self._running.update(zip(ids, indexes, strict=True))
        if not self._waiting:
            self._prompts = SharedPrompts()  # what was prepared is needed no longer than that

    def _refused(self) -> Iterator[tuple[int, OutputDelta]]:
        for index, request in enumerate(self._requests):
            if isinstance(request, RequestError):
                yield index, OutputDelta(request_id=-1, finish_reason="error", error=request)

    def _is_over(self) -> bool:
        """Whether every request has had its final delta. Raises `RequestError` in a forked child: the answers come to
        the process that asked, and to no other."""
        if self._process_id != os.getpid():
            self._running.clear()
            raise RequestError(
                ErrorCode.CLOSED,
                f"this stream belongs to process {self._process_id}, which asked for it: read it there, or make an "
                "engine in each process",
            )
        return not (self._waiting or self._running)

    def _open(self, mail: Event) -> tuple[int, OutputDelta] | None:
        """The (index, delta) of output; a call is made, and there is None."""
        if not isinstance(mail, OutputDelta):
            mail()
            return None
        index = self._running[mail.request_id]
        if mail.finish_reason is not None:
            del self._running[mail.request_id]
        return index, mail


class RequestBatch(_Requests):
    """Read `deltas` to the end; leaving earlier aborts what is still running."""

    def deltas(self) -> Generator[tuple[int, OutputDelta], None, None]:
        """Submit all requests, and yield (index of the request, delta) until each has its final one."""
        event_queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        try:
            self._submit(len(self._waiting), event_queue.put)
            yield from self._refused()
            while not self._is_over():
                if (found := self._open(event_queue.get())) is not None:
                    yield found
        finally:
            self.abort()


class AsyncRequestBatch(_Requests):
    """Read `deltas` to the end; leaving earlier aborts what is still running. Made and read in a running event loop;
    `call_soon` and `end` may be called from any thread.

    With `submit`, requests are handed to the engine a few at a time; then read `submitted_deltas`.
    """

    def __init__(
        self, engine: Engine, requests: Sequence[GenerationRequest | RequestError], *, streams: bool | None = None
    ) -> None:
        super().__init__(engine, requests, streams=streams)
        self._event_queue = _EventQueue()
        self._notifier = _notifier_of(asyncio.get_running_loop())

    def submit(self, count: int) -> None:
        """Hand the next `count` requests to the engine. Called by the reader, or through `call_soon`."""
        self._submit(count, self._put)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Let the reader make this call, before the deltas that come later. What it raises, the reader raises."""
        self._put(call)

    def end(self, error: Exception) -> None:
        """Let the reader raise `error`."""

        def fail() -> NoReturn:
            raise error

        self.call_soon(fail)

    async def deltas(self) -> AsyncGenerator[tuple[int, OutputDelta], None]:
        """Submit all requests, and yield (index of the request, delta) until each has its final one."""
        try:
            self.submit(len(self._waiting))
        except BaseException:
            self.abort()
            raise
        async with contextlib.aclosing(self.submitted_deltas()) as deltas:
            async for delta in deltas:
                yield delta

    async def submitted_deltas(self) -> AsyncGenerator[tuple[int, OutputDelta], None]:
        """Yield (index of the request, delta) until each request was submitted and has its final one."""
        try:
            for refused in self._refused():
                yield refused
            while not self._is_over():
                await self._event_queue.wait()
                for mail in self._event_queue.take():
                    if (found := self._open(mail)) is not None:
                        yield found
        finally:
            self.abort()

    def _put(self, mail: Event) -> None:
        self._notifier.put(self._event_queue, mail)


class _EventQueue:
    """Event for one reader. All methods are called in its event loop."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._reader: asyncio.Future[None] | None = None  # wakes the reader, who waits

    def put(self, mail: Event) -> None:
        self._events.append(mail)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def wait(self) -> None:
        """Wait until there is mail."""
        if not self._events:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None

    def take(self) -> list[Event]:
        """Take what is there, in order; the deltas of a request between two calls are one."""
        mail, self._events = self._events, []
        return mail if len(mail) == 1 else _join_deltas(mail)


def _join_deltas(mail: Sequence[Event]) -> list[Event]:
    joined: list[Event] = []
    waiting: dict[int, list[OutputDelta]] = {}  # by request, since the last call
    for entry in mail:
        if isinstance(entry, OutputDelta):
            waiting.setdefault(entry.request_id, []).append(entry)
        else:
            joined += _join_each(waiting)
            waiting.clear()
            joined.append(entry)
    return joined + _join_each(waiting)


def _join_each(waiting: Mapping[int, Sequence[OutputDelta]]) -> list[Event]:
    """An error stays alone, so that the text before it is handed out."""
    joined: list[Event] = []
    for deltas in waiting.values():
        if deltas[-1].error is not None and len(deltas) > 1:
            joined += [join_deltas(deltas[:-1]), deltas[-1]]
        else:
            joined.append(join_deltas(deltas))
    return joined


class LoopNotifier:
    """Carry mail from any thread to an event loop. One wake-up delivers all mail that is waiting."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._waiting: deque[tuple[_EventQueue, Event]] = deque()
        self._is_scheduled = False

    def put(self, event_queue: _EventQueue, mail: Event) -> None:
        self._waiting.append((event_queue, mail))
        if not self._is_scheduled and (loop := self._loop()) is not None:
            self._is_scheduled = True
            try:
                loop.call_soon_threadsafe(self._hand_out)
            except RuntimeError:  # the event loop is closed: there is no reader any more
                self._waiting.clear()
                self._is_scheduled = False

    def _hand_out(self) -> None:
        # Clear the flag first: mail that is put from now on is either handed out below or schedules another call.
        self._is_scheduled = False
        while self._waiting:
            event_queue, mail = self._waiting.popleft()
            event_queue.put(mail)


_notifiers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopNotifier] = weakref.WeakKeyDictionary()


def _notifier_of(loop: asyncio.AbstractEventLoop) -> LoopNotifier:
    """The one of `loop`, in whose thread this is called."""
    if (found := _notifiers.get(loop)) is None:
        found = _notifiers[loop] = LoopNotifier(loop)
    return found

"""The requests of one call while they are answered: submitted together, read from one queue, aborted when left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from seesay.errors import ErrorCode, RequestError
from seesay.values import GenerationRequest, OutputDelta


class Engine(Protocol):
    """The part of `AsyncEngine` that answers requests."""

    def submit_batch(
        self, requests: Sequence[GenerationRequest], on_output: Callable[[OutputDelta], None]
    ) -> list[int]: ...
    def abort(self, request_id: int) -> None: ...


class Batch:
    """`start`, then read `deltas` (or `deltas_async`) to the end; leaving earlier aborts what is still running.

    A `RequestError` among the requests is answered at once, without the engine. With `streams` False each answer comes
    as a whole, in its final delta.
    """

    def __init__(
        self, engine: Engine, requests: Sequence[GenerationRequest | RequestError], *, streams: bool = True
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._streams = streams
        self._running: dict[int, int] = {}  # request id → index
        self._process_id = os.getpid()

    def _start(self, on_output: Callable[[OutputDelta], None]) -> None:
        good = [(i, request) for i, request in enumerate(self._requests) if isinstance(request, GenerationRequest)]
        if good:
            # Deltas may come before submit_batch returns; they wait in the queue until their ids are known here.
            ids = self._engine.submit_batch([replace(request, streams=self._streams) for _, request in good], on_output)
            self._running = {request_id: index for request_id, (index, _) in zip(ids, good, strict=True)}

    def _refused(self) -> Iterator[tuple[int, OutputDelta]]:
        for index, request in enumerate(self._requests):
            if isinstance(request, RequestError):
                yield index, OutputDelta(request_id=-1, finish_reason="error", error=request)

    def _check_process(self) -> None:
        """Raise `RequestError` in a forked child: the answers come to the process that asked, and to no other."""
        if self._process_id != os.getpid():
            self._running.clear()
            raise RequestError(
                ErrorCode.CLOSED,
                f"this stream belongs to process {self._process_id}, which asked for it: read it there, or make an "
                "engine in each process",
            )

    def _take(self, delta: OutputDelta) -> tuple[int, OutputDelta]:
        index = self._running[delta.request_id]
        if delta.finish_reason is not None:
            del self._running[delta.request_id]
        return index, delta

    def abort(self, index: int | None = None) -> None:
        """Abort the request of this index, or all that are running. Their final deltas still come."""
        if self._process_id != os.getpid():
            return
        for request_id, running_index in list(self._running.items()):
            if index is None or index == running_index:
                self._engine.abort(request_id)

    def deltas(self) -> Generator[tuple[int, OutputDelta], None, None]:
        """(index of the request, delta), until every request has its final one."""
        outputs: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
        try:
            self._start(outputs.put)
            yield from self._refused()
            while self._running:
                self._check_process()
                yield self._take(outputs.get())
        finally:
            self.abort()

    async def deltas_async(self) -> AsyncGenerator[tuple[int, OutputDelta], None]:
        """The same, without blocking the running event loop."""
        loop = asyncio.get_running_loop()
        outputs: asyncio.Queue[OutputDelta] = asyncio.Queue()

        def put(delta: OutputDelta) -> None:
            # When the loop is closed, nobody waits for this delta any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(outputs.put_nowait, delta)

        try:
            self._start(put)
            for refused in self._refused():
                yield refused
            while self._running:
                self._check_process()
                yield self._take(await outputs.get())
        finally:
            self.abort()

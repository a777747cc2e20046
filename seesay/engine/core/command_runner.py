"""Runs commands between steps or between requests."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial

from seesay.engine.commands import Command, LoadAdapter, ResetCaches, UnloadAdapter
from seesay.engine.core.adapters import AdapterControl, ReadAdapter
from seesay.engine.core.embedding_supply import EmbeddingSupply
from seesay.engine.core.inbox import Inbox
from seesay.engine.core.live_requests import LiveRequests
from seesay.engine.core.request_ends import RequestEnds
from seesay.engine.core.waiting_commands import WaitingCommands
from seesay.errors import ErrorCode, RequestError
from seesay.llm.scheduling.scheduler import Scheduler


class CommandRunner:
    """Takes commands from other threads through `inbox`, and runs those that need not wait until no request is
    alive."""

    def __init__(
        self,
        inbox: Inbox,
        waiting: WaitingCommands,
        *,
        scheduler: Scheduler,
        embeddings: EmbeddingSupply,
        adapters: AdapterControl,
        requests: LiveRequests,
        ends: RequestEnds,
        forget_answers: Callable[[], None],
    ) -> None:
        """`forget_answers`: see `Speculation.forget`."""
        self._inbox = inbox
        self._waiting = waiting
        self._scheduler = scheduler
        self._embeddings = embeddings
        self._adapters = adapters
        self._requests = requests
        self._ends = ends
        self._forget_answers = forget_answers

    def run(self, command: Command, *, is_own_thread: bool, is_alive: Callable[[], bool]) -> None:
        """Have the loop do it, and wait for that while the loop `is_alive`, but not in the loop's own thread."""
        done: Future[None] = Future()
        if isinstance(command, LoadAdapter | UnloadAdapter):
            adapter = self._adapters.read(command) if isinstance(command, LoadAdapter) else None
            self._inbox.put(partial(self._change_adapters, command, adapter, done))
        else:
            self._inbox.put(partial(self._take, command, done))
        if is_own_thread:
            return
        while is_alive() and not wait([done], timeout=0.5).done:
            pass
        if not done.done():
            raise RequestError(ErrorCode.CLOSED, "the engine is closed")
        done.result()

    def _take(self, command: Command, done: Future[None]) -> None:
        try:
            if isinstance(command, ResetCaches):
                self._scheduler.forget_prefixes()
                self._embeddings.store.clear()
                self._forget_answers()
                done.set_result(None)
                return
            self._waiting.add(command, done)
            if getattr(command, "running", None) == "abort":
                for request_id in list(self._requests.by_id):
                    self._ends.end(request_id, "abort")
        except BaseException as error:
            try:
                self._waiting.drop(done)
            finally:
                done.set_exception(error)
            raise

    def _change_adapters(
        self, command: LoadAdapter | UnloadAdapter, adapter: ReadAdapter | None, done: Future[None]
    ) -> None:
        leaving = self._adapters.take(command, adapter, done)
        if leaving is not None:
            for request in list(self._requests.iterate()):
                if request.sequence.adapter_id == leaving:
                    self._ends.end(request.request_id, "abort")

"""Threads for the calls of several owners, who take turns."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from functools import partial
from typing import ParamSpec, TypeVar

from seesay.system.thread_pool import ThreadPool, run_call

P = ParamSpec("P")
T = TypeVar("T")


class FairThreads:
    """A `ThreadPool` whose free threads take the oldest call of the owner whose last turn was longest ago."""

    def __init__(self, max_threads: int, *, name: str) -> None:
        self._pool = ThreadPool(max_threads, name=name)
        self._lock = threading.Lock()
        self._calls: OrderedDict[Hashable, deque[Callable[[], None]]] = OrderedDict()  # the next owner first

    def submit(self, owner: Hashable, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `call` soon. Raises `RuntimeError` as `ThreadPool.submit` does."""
        future: Future[T] = Future()
        with self._lock:
            self._pool.submit(self._run_next)
            self._calls.setdefault(owner, deque()).append(partial(run_call, future, call, args, kwargs))
        return future

    def close(self) -> None:
        """Finish what was submitted, and end the threads."""
        self._pool.close()

    def _run_next(self) -> None:
        with self._lock:
            owner, calls = self._calls.popitem(last=False)
            call = calls.popleft()
            if calls:
                self._calls[owner] = calls
        call()

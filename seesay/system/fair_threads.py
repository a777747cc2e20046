"""Threads for the calls of several owners, who take turns."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from functools import partial
from typing import ParamSpec, TypeVar

from seesay.system.thread_pool import ThreadPool, run_call

P = ParamSpec("P")
T = TypeVar("T")


class FairThreads:
    """A `ThreadPool` whose free threads take the oldest call of the owner whose last turn was longest ago.
    max_per_owner: most threads that run calls of one owner, so that others find a free one; None: all."""

    def __init__(self, max_threads: int, *, name: str, max_per_owner: int | None = None) -> None:
        assert max_per_owner is None or max_per_owner > 0
        self._pool = ThreadPool(max_threads, name=name)
        self._max_per_owner = max_per_owner or max_threads
        self._lock = threading.Lock()
        self._calls: OrderedDict[Hashable, deque[Callable[[], None]]] = OrderedDict()  # the next owner first
        self._num_running: Counter[Hashable] = Counter()
        self._num_deferred = 0  # turns without a free thread: the thread of a call that ends takes one of them

    def submit(self, owner: Hashable, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `call` soon. Raises `RuntimeError` as `ThreadPool.submit` does."""
        future: Future[T] = Future()
        with self._lock:
            self._pool.submit(self._take_turn)
            self._calls.setdefault(owner, deque()).append(partial(run_call, future, call, args, kwargs))
        return future

    def close(self) -> None:
        """Finish what was submitted, and end the threads."""
        self._pool.close()

    def _take_turn(self) -> None:
        with self._lock:
            turn = self._try_begin()
            self._num_deferred += turn is None
        while turn is not None:
            owner, call = turn
            call()
            del call, turn  # its arguments must not stay alive
            with self._lock:
                self._num_running[owner] -= 1
                if not self._num_running[owner]:
                    del self._num_running[owner]
                turn = self._try_begin() if self._num_deferred else None
                self._num_deferred -= turn is not None

    def _try_begin(self) -> tuple[Hashable, Callable[[], None]] | None:
        """The next call of the first owner who may have another thread."""
        for owner in self._calls:
            if self._num_running[owner] < self._max_per_owner:
                break
        else:
            return None
        calls = self._calls.pop(owner)
        call = calls.popleft()
        if calls:
            self._calls[owner] = calls
        self._num_running[owner] += 1
        return owner, call

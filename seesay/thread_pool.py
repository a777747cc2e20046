"""Threads that run calls for others, as `concurrent.futures.ThreadPoolExecutor` does, with two differences.

They take calls until the interpreter really ends: an executor refuses them as soon as the main thread is over, while
other threads of a script still ask questions. And a call that no thread can be started for is refused, not left behind.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Calls:
    """The calls of a pool: a queue, in which None ends the threads, and the number that are queued or running."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.num_unfinished = 0


class ThreadPool:
    """Run calls in at most `max_threads` daemon threads, started when they are needed.

    The threads end when the pool is closed, or when nobody refers to it any more; they finish what was submitted.
    """

    def __init__(self, max_threads: int, *, name: str) -> None:
        assert max_threads > 0
        self._max_threads = max_threads
        self._name = name
        self._threads: list[threading.Thread] = []
        self._calls = _Calls()
        self._is_closed = False
        weakref.finalize(self, self._calls.queue.put, None).atexit = False

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `call` soon. Raises `RuntimeError` when the pool is closed, or has no thread and none can be started."""
        future: Future[T] = Future()
        with self._calls.lock:
            if self._is_closed:
                raise RuntimeError(f"the thread pool {self._name!r} is closed")
            if len(self._threads) < min(self._calls.num_unfinished + 1, self._max_threads):
                self._start_thread()
            self._calls.num_unfinished += 1
            self._calls.queue.put(lambda: run_call(future, call, args, kwargs))
        return future

    def _start_thread(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=_work, args=(self._calls,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:
                raise
            return  # the threads that there are come to it later
        self._threads.append(thread)

    def close(self) -> None:
        """Finish what was submitted, and end the threads."""
        with self._calls.lock:
            self._is_closed = True
            self._calls.queue.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()


def _work(calls: _Calls) -> None:
    """Run calls until None comes, which is left for the other threads. Holds no reference to the pool."""
    while (call := calls.queue.get()) is not None:
        call()
        del call  # what it refers to must not live until the next one comes
        with calls.lock:
            calls.num_unfinished -= 1
    calls.queue.put(None)


def run_call(future: Future[T], call: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run a call, unless it was cancelled, and let `future` have its result or exception."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call(*args, **kwargs)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)

"""A thread pool like `concurrent.futures.ThreadPoolExecutor`, with two differences.

It accepts calls until the interpreter exits; an executor refuses them as soon as the main thread has ended, although
other threads of a script may still run. It also refuses a call for which no thread can be started, instead of queueing
it forever.
"""

from __future__ import annotations

import contextvars
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Calls:
    """The calls of a pool: a queue, in which None ends the threads, and the number of queued and running calls."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.num_unfinished = 0


class ThreadPool:
    """Run calls in at most `max_threads` daemon threads, which start when they are needed.

    The threads finish all submitted calls and end when the pool is closed or garbage-collected.
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
        """Submit `call`, which runs with the context variables of the caller. Raises `RuntimeError` if the pool is
        closed, or has no thread and cannot start one."""
        future: Future[T] = Future()
        with self._calls.lock:
            if self._is_closed:
                raise RuntimeError(f"the thread pool {self._name!r} is closed")
            if len(self._threads) < min(self._calls.num_unfinished + 1, self._max_threads):
                self._start_thread()
            self._calls.num_unfinished += 1
            context = contextvars.copy_context()
            self._calls.queue.put(lambda: context.run(run_call, future, call, args, kwargs))
        return future

    def _start_thread(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=_work, args=(self._calls,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:
                raise
            return  # an existing thread will run it
        self._threads.append(thread)

    def close(self) -> None:
        """Finish all submitted calls, then end the threads."""
        with self._calls.lock:
            self._is_closed = True
            self._calls.queue.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()


def _work(calls: _Calls) -> None:
    """Run calls until None comes, which stays in the queue for the other threads. Holds no reference to the pool."""
    while (call := calls.queue.get()) is not None:
        call()
        del call  # its arguments must not stay alive until the next call comes
        with calls.lock:
            calls.num_unfinished -= 1
    calls.queue.put(None)


def run_call(future: Future[T], call: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Run a call unless it was cancelled, and set its result or exception on `future`."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call(*args, **kwargs)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)

"""Whether somebody still waits for work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from seesay.errors import ErrorCode, RequestError


class Cancellation:
    """Cancels work that nobody waits for any more. Thread-safe."""

    def __init__(self, num_waiting: int = 1) -> None:
        """`num_waiting`: requests that wait for the work."""
        self._lock = threading.Lock()
        self._num_waiting = num_waiting
        self._calls: dict[object, Callable[[], object]] = {}

    def try_join(self) -> bool:
        """One more waits for the work. Returns False where it is cancelled already."""
        with self._lock:
            if self._num_waiting <= 0:
                return False
            self._num_waiting += 1
        return True

    def leave(self) -> None:
        """One of those who wait has gone."""
        with self._lock:
            self._num_waiting -= 1
            calls = list(self._calls.values()) if self._num_waiting == 0 else []
        for call in calls:
            call()

    def check(self) -> None:
        """Raise `RequestError` if nobody waits."""
        if self._num_waiting <= 0:
            raise make_aborted_error()

    def on_leave(self, call: Callable[[], object]) -> Callable[[], None]:
        """Call `call` once nobody waits: at once, or from another thread. It must be quick and must not raise. Returns
        a function that takes it back."""
        key = object()
        with self._lock:
            self._calls[key] = call
            is_over = self._num_waiting <= 0
        if is_over:
            call()

        def take_back() -> None:
            with self._lock:
                self._calls.pop(key, None)

        return take_back

    @contextmanager
    def calling(self, call: Callable[[], object]) -> Iterator[None]:
        """Inside the block, `call` is called as by `on_leave`."""
        take_back = self.on_leave(call)
        try:
            yield
        finally:
            take_back()


def make_aborted_error() -> RequestError:
    return RequestError(ErrorCode.ABORTED, "the request was aborted while it was prepared")

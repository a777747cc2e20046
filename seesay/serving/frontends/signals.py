"""Signals of a process that waits in a poller: they are noted, and handled when it takes them."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from seesay.engine.process.waker import Waker


class SignalInbox:
    """SIGINT and SIGTERM that came and were not taken yet. Each wakes `waker`."""

    def __init__(self, waker: Waker) -> None:
        self._waker = waker
        self._signals: list[int] = []

    def take(self) -> int | None:
        """Return the number of the next signal; None where there is none."""
        return self._signals.pop(0) if self._signals else None

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Note signals inside of the block. Raises RuntimeError outside of the main thread."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a server with several frontends runs in the main thread, which takes signals")
        before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        wakeup = signal.set_wakeup_fd(self._waker.signal_descriptor, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._signals.append(number)

"""Ends a thread's wait for messages from other threads and from signal handlers."""

from __future__ import annotations

import contextlib
import select
import socket


class Waker:
    """A descriptor to wait for beside others. `wake` may be called from any thread."""

    def __init__(self) -> None:
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)

    def wake(self) -> None:
        """End the wait of the thread that waits, or the next one."""
        with contextlib.suppress(OSError):  # it has more to wake up for than it can take, or has ended
            self._waker.send(b"\0")

    def fileno(self) -> int:
        """Return the descriptor that can be read once there is something to wake up for."""
        return self._woken.fileno()

    @property
    def signal_descriptor(self) -> int:
        """The descriptor for `signal.set_wakeup_fd`."""
        return self._waker.fileno()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for nothing else; no longer than `timeout_s`."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        poll.poll(None if timeout_s is None else 1 + int(1000 * timeout_s))
        self.take()

    def take(self) -> None:
        """Note that the thread has woken up: the next wait is for what comes from now on."""
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(1 << 10)

    def close(self) -> None:
        """Close the descriptors. Calls of `wake` do nothing from now on."""
        self._woken.close()
        self._waker.close()

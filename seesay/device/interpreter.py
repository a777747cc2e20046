"""Which thread gets the GIL, and how soon.

Every call of torch gives the interpreter up for a moment. Threads that run Python, such as those that prepare prompts,
then keep it for up to `sys.getswitchinterval()`, 5 ms by default, and a step whose launch is some hundred calls is not
launched before they are done: the GPU has nothing to do for most of a second.
"""

from __future__ import annotations

import os
import sys
import threading

INTERVAL_S = 1e-4
MAX_WAIT_S = 0.02
"""Nobody gives way for longer."""


class QuickSwitches:
    """A context in which the threads of this process take turns every 0.1 ms. Ends with the last of those who entered
    it, in whatever threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_users = 0
        self._before_s = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._num_users:
                self._before_s = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before_s, INTERVAL_S))
            self._num_users += 1

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._num_users -= 1
            if not self._num_users and sys.getswitchinterval() < 2 * INTERVAL_S:  # or else somebody else has set it
                sys.setswitchinterval(self._before_s)

    def leave_to_parent(self) -> None:
        """A forked child has none of the threads that entered."""
        if self._num_users:
            sys.setswitchinterval(self._before_s)
        self._lock, self._num_users = threading.Lock(), 0


quick_switches = QuickSwitches()
os.register_at_fork(after_in_child=quick_switches.leave_to_parent)


class Precedence:
    """Threads that launch work for a GPU do so in this context; others ask before they begin with a request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_inside = 0
        self._is_free = threading.Event()
        self._is_free.set()

    def __enter__(self) -> None:
        with self._lock:
            self._num_inside += 1
            self._is_free.clear()

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._num_inside -= 1
            if not self._num_inside:
                self._is_free.set()

    def yield_to_launches(self) -> None:
        """Wait until nobody is inside, but not long."""
        self._is_free.wait(MAX_WAIT_S)

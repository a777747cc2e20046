"""How soon a thread that waits for Python's interpreter gets it.

Every call of torch gives the interpreter up for a moment. A thread of pure Python that takes it then keeps it for
`sys.getswitchinterval()`, 5 ms by default, and a step that is launched meanwhile, with some hundred calls, takes a
second instead of 10 ms, in which the GPU has nothing to do.
"""

from __future__ import annotations

import sys
import threading

INTERVAL_S = 1e-4


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
            if not self._num_users:
                sys.setswitchinterval(self._before_s)


quick_switches = QuickSwitches()

"""`python -m seesay.engine.process.start MODULE`: runs a module in a process that cannot outlive its parent.

Imports next to nothing: until the module's `Parent` confirms, this is what ends a process that a signal has stopped.
"""

from __future__ import annotations

import contextlib
import ctypes
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def signal_when_parent_ends(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the thread that started it ends. Only Linux can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


if __name__ == "__main__":
    # It goes on, finds its standard input closed, and removes the names of its sockets before it ends.
    signal_when_parent_ends(signal.SIGCONT)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)

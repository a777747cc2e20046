"""The child's end of a link: connects to the process that started this one, and ends with it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

from seesay.engine.process.link import MAX_WAITING_BYTES, Limits, Link

_PR_SET_PDEATHSIG = 1


def exit_at_once(status: int) -> NoReturn:
    """End the process without taking the interpreter down, which would take longer than a second with all of torch in
    it: the kernel frees what is left."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class Parent:
    """The process that started this one with `ChildProcess`. `link` is to be used like any `Link`, and
    `descriptors` are those that were handed on."""

    def __init__(self, *, receives: Any) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # ours to end us
        orders = json.loads(sys.stdin.buffer.readline())
        self._folder = Path(orders["folder"])
        self._pid = int(orders["parent"])
        self.descriptors: list[int] = orders["descriptors"]
        threading.Thread(target=self._end_with_it, name="seesay-parent-watch", daemon=True).start()
        # No limit in time: the parent itself may be stopped for long.
        self.link: Link[Any, Any] = Link(
            self._folder,
            socket.socket(fileno=orders["files"]),
            receives=receives,
            is_child=True,
            limits=Limits(max_bytes=MAX_WAITING_BYTES),
        )

    def confirm(self) -> None:
        """Call once both directions work. Removes the sockets' names, which are not needed any more, and lets the
        kernel end this process with its parent, whatever it is doing then."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(OSError, AttributeError):  # Linux alone has it
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._pid:
            os._exit(1)

    def _end_with_it(self) -> None:
        """End when nobody holds the other end of standard input any more."""
        with contextlib.suppress(OSError):
            while os.read(sys.stdin.fileno(), 1 << 10):
                pass
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(1)

"""Starts a process of ours at the other end of a link, and ends it.

The process is `python -m seesay.engine.process.start MODULE`, never a copy of the caller's main module: it works from
notebooks, scripts without `if __name__ == "__main__"`, standard input and forked processes alike.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import zmq

from seesay.engine.process.link import Link, choose_folder
from seesay.system.log import stderr_descriptor
from seesay.system.python import python_command

S = TypeVar("S")
R = TypeVar("R")

_STARTER = "seesay.engine.process.start"
END_S = 10.0
"""Longest wait for a process that was killed: one in the middle of a driver's call ends when that returns."""


class ChildProcess(Generic[S, R]):
    """A process and the link to it. Sends messages of the type S, receives those of the type (or union) R.

    The process ends when the thread that started it does, at the latest. It has a session of its own, so that Ctrl-C
    goes to this process alone. What it prints goes to standard error.
    """

    def __init__(self, module: str, *, receives: Any, descriptors: Sequence[int] = ()) -> None:
        """Start it, and hand it `descriptors`, too. Raises `OSError` when the system starts no process."""
        self._folder = choose_folder()
        self._life: int | None = None
        ours, theirs = socket.socketpair()
        try:
            self._folder.mkdir(mode=0o700)
            self.link: Link[S, R] = Link(self._folder, ours, receives=receives, is_child=False)
            try:
                self._process = start_module(module, [theirs.fileno(), *descriptors])
                orders = {"folder": str(self._folder), "files": theirs.fileno(), "descriptors": list(descriptors)}
                give_orders(self._process, orders)
            except BaseException:
                self.link.close()
                raise
        except BaseException:
            ours.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        finally:
            theirs.close()
        with contextlib.suppress(AttributeError, OSError):  # not on Linux, or forbidden in a container
            self._life = os.pidfd_open(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, timeout_s: float, *others: int) -> bool:
        """Wait for a message, the end of the process, or one of the descriptors `others`. Returns whether there is a
        message."""
        descriptors = others if self._life is None else (*others, self._life)
        return self.link.wait(timeout_s, *descriptors)

    def register(self, poller: zmq.Poller) -> None:
        """Let `poller` wait for messages, and for the end of the process."""
        self.link.register(poller)
        if self._life is not None:
            poller.register(self._life, zmq.POLLIN)

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process, and remove the names of the sockets. Waits for nothing."""
        self._process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def find_end(self) -> str | None:
        """How the process ended, such as 'signal 9' or 'status 1'; None while it lives."""
        status = self._process.poll()
        return None if status is None else describe_status(status)

    def end(self, timeout_s: float = 0.0) -> None:
        """Wait `timeout_s` for the process to end by itself, then kill it, and free all that the link holds. Call it
        from the thread that receives."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        if self._process.returncode is None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self.link.close()
        if self._life is not None:
            os.close(self._life)
            self._life = None
        shutil.rmtree(self._folder, ignore_errors=True)


def start_module(module: str, descriptors: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Run a module of ours as a process, and hand it `descriptors`. It waits for orders."""
    command, environment = python_command(_STARTER)
    return subprocess.Popen(
        [*command, module],
        stdin=subprocess.PIPE,
        stdout=stderr_descriptor(),
        pass_fds=descriptors,
        start_new_session=True,
        env=environment,
    )


def give_orders(process: subprocess.Popen[bytes], orders: Mapping[str, object]) -> None:
    """Tell a process what its `Parent` must know."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended already, which the caller finds out
        process.stdin.write(json.dumps({**orders, "parent": os.getpid()}).encode() + b"\n")
        process.stdin.flush()  # it stays open: the process ends when it is closed


def describe_status(status: int) -> str:
    """Return how a process ended, such as 'signal 9' or 'status 1'."""
    return f"signal {-status}" if status < 0 else f"status {status}"

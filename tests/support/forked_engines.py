"""Engine processes that start in a tenth of the time: forks of a process that has imported what they import.

Tests that start many engine processes use these; those that are about starting one start it as users do. A fork has the
test's process as its parent: the process in between ends, and for that moment the test's process takes over orphans.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from seesay.engine.process import kinds
from seesay.engine.process.launch import ChildProcess
from seesay.engine.process.origin import Child, OwnProcess
from seesay.system.log import stderr_descriptor
from seesay.system.python import python_command

IMPORTED = (
    "torch", "safetensors.torch", "seesay.engine.process.child", "seesay.engine.process.service",
    "seesay.engine.process.precompile", "seesay.engine.opened_model", "seesay.engine.core.loading.loading",
    "seesay.llm.running.runner",    "seesay.llm.models.composed_decoder", "seesay.encoders.worker",
)  # fmt: skip
_PR_SET_CHILD_SUBREAPER = 36
_HIGH = 512
"""Descriptors from here on are free in the process that is forked."""


FORKS = sys.platform == "linux" and not Path("/dev/nvidiactl").exists()
"""Where there is a GPU, its driver decides what a fork may do."""


class ForkedProcess(OwnProcess):
    """An `Origin` whose process is a fork of one that imports `module` and calls its `run`; where there is a GPU, one
    that is started as users do."""

    def open(self) -> Child:
        if not FORKS:
            return super().open()
        listeners = () if self._listener is None else (self._listener.fileno(),)
        return _ForkedChild(self.module, receives=kinds.ToFrontend, descriptors=listeners)


class _ForkedChild(ChildProcess[kinds.ToCore, kinds.ToFrontend]):
    def _start(self, module: str, descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
        reading, writing = os.pipe()
        try:
            error = stderr_descriptor()
            places = {0: reading, 1: 1 if error is None else error, 2: 2, **{number: number for number in descriptors}}
            pid = _find_template().fork(module, places)
        finally:
            os.close(reading)
        return _Adopted(pid, writing)


class _Adopted(subprocess.Popen[bytes]):
    """A child of this process that another one has forked."""

    def __init__(self, pid: int, stdin: int) -> None:
        self.pid, self.args = pid, "a fork"
        self.stdin, self.stdout, self.stderr = os.fdopen(stdin, "wb"), None, None
        self.returncode: int | None = None
        self._guard = threading.Lock()

    def __del__(self, *_: Any) -> None:
        pass

    def poll(self) -> int | None:
        with self._guard:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.poll() is None:
            life = os.pidfd_open(self.pid)
            with contextlib.closing(os.fdopen(life, "rb", buffering=0)):
                poller = select.poll()
                poller.register(life, select.POLLIN)
                poller.poll(None if timeout is None else timeout * 1000)
        if (status := self.poll()) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Template:
    """The process that is forked. It has one thread, and ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        command, environment = python_command("forked_engines")
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=environment,
            )
        atexit.register(self.close)

    def fork(self, module: str, places: dict[int, int]) -> int:
        """Return the id of a new child of this process, which runs `module`. places: {its descriptor: ours}."""
        _, environment = python_command(module)
        order = {"module": module, "folder": str(Path.cwd()), "environment": environment, "places": list(places)}
        data = json.dumps(order).encode()
        with self._lock, _taking_over_orphans():
            socket.send_fds(self._socket, [len(data).to_bytes(4, "little")], list(places.values()))
            self._socket.sendall(data)
            answer = self._socket.recv(8)
        if not answer:
            raise OSError("the process that engine processes are forked from has ended")
        return int.from_bytes(answer, "little")

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def start_template() -> None:
    """Start the process that others are forked of, which stays, for those who count processes and descriptors."""
    _find_template()


@functools.cache
def _find_template() -> _Template:
    return _Template()


@contextlib.contextmanager
def _taking_over_orphans() -> Iterator[None]:
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0)


# --- the process that is forked --------------------------------------------------------------------------------------


def serve(link: socket.socket) -> None:
    """Fork for each order that comes, until the other end is closed."""
    gc.disable()
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    while True:
        head, descriptors, _, _ = socket.recv_fds(link, 4, 64)
        if not head:
            return
        size, data = int.from_bytes(head, "little"), b""
        while len(data) < size:
            data += link.recv(size - len(data))
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            if pid := os.fork():
                os.write(writing, pid.to_bytes(8, "little"))
                os._exit(0)
            _run(link, json.loads(data), descriptors)
        os.waitpid(between, 0)  # from now on the other one is a child of those who asked for it
        link.sendall(os.read(reading, 8))
        for descriptor in (reading, writing, *descriptors):
            os.close(descriptor)


def _run(link: socket.socket, order: dict[str, Any], descriptors: Sequence[int]) -> NoReturn:
    try:
        os.setsid()
        link.detach()
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _HIGH) for descriptor in descriptors]
        os.closerange(3, _HIGH)
        for place, descriptor in zip(order["places"], high, strict=True):
            os.dup2(descriptor, place)
        os.closerange(_HIGH, max(high) + 1)
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        paths = order["environment"]["PYTHONPATH"].split(os.pathsep)
        sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]
        tempfile.tempdir = None
        importlib.import_module(order["module"]).run()
    except BaseException:
        traceback.print_exc()
    os._exit(1)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))

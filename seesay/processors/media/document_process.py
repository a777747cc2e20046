"""Asks the process that opens and draws documents (`document_child.py`). It starts with the first document, serves all
threads of this process, and is replaced when it ends or hangs. A forked child starts its own.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import subprocess
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial

from seesay.errors import ErrorCode, MissingExtraError, RequestError
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.document_child import ANSWER, CPU_S, HEAD, WALL_S, Job
from seesay.system.python import python_command

_MAX_JOBS = 8
"""Jobs that run at a time."""
_LOOK_S = 0.2
_PATIENCE_S = 10.0
"""The process ends a job after `WALL_S`. One that has not after so long more hangs, and is replaced."""
_ENVIRONMENT = ("LD_LIBRARY_PATH", "LANG", "LC_ALL", "PYTHONPATH", "HOME")


class JobRefusedError(Exception):
    """The document cannot be used, and `kind` says why: 'damaged', 'encrypted', 'missing', 'many', 'memory', 'time',
    'crash'. `details` belong to the kind."""

    def __init__(self, kind: str, *details: object) -> None:
        super().__init__(kind, *details)
        self.kind, self.details = kind, details


class _LostError(Exception):
    """The process has ended, or hangs."""


class DocumentProcess:
    """The process, started when it is needed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(_MAX_JOBS)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._pid = 0

    def ask(self, job: Job, document: int, allowance: Allowance) -> bytes:
        """Return the answer to a job about the document in the file `document`. Its processor time is counted in
        `allowance`. Raises `JobRefusedError`, or `RequestError` when nobody waits for it any more."""
        with self._slots:
            try:
                return self._ask_once(job, document, allowance)
            except _LostError:
                self.close()
            try:
                return self._ask_once(job, document, allowance)
            except _LostError:
                raise RequestError(
                    ErrorCode.INTERNAL, "the process that reads documents does not respond: send the request again"
                ) from None

    def close(self) -> None:
        """End the process. The next job starts another."""
        with self._lock:
            process, self._process = self._process, None
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if process is not None and self._pid == os.getpid():
            process.kill()
            process.wait()

    def _ask_once(self, job: Job, document: int, allowance: Allowance) -> bytes:
        cpu_s = min(float(CPU_S), allowance.remaining_document_s())
        message = json.dumps({**job, "cpu_s": cpu_s}).encode()
        with ExitStack() as stack:
            answer, answer_end = os.pipe()
            status, status_end = os.pipe()
            for end in (answer, status):
                stack.callback(os.close, end)
            try:
                with self._lock:
                    socket.send_fds(self._connect(), [message], [document, answer_end, status_end])
            except OSError:
                raise _LostError from None
            finally:
                os.close(answer_end)
                os.close(status_end)
            kind, used_s, content = _read_answer(answer, status, allowance, cpu_s)
        allowance.spend_document_s(used_s)
        if kind != ANSWER:
            raise JobRefusedError(*json.loads(content))
        return content

    def _connect(self) -> socket.socket:
        """Return the connection to the process; start it, if there is none. Holds the lock."""
        if self._connection is not None and self._pid == os.getpid():
            return self._connection
        command, environment = python_command("seesay.processors.media.document_child")
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C in the terminal is for the parent, whose end ends the process
                    cwd="/",
                    env={
                        **{name: environment[name] for name in _ENVIRONMENT if name in environment},
                        "OMP_NUM_THREADS": "1",
                        "OPENBLAS_NUM_THREADS": "1",
                    },
                )
            except OSError as error:
                ours.close()
                raise RequestError(
                    ErrorCode.INTERNAL, f"the process that reads documents cannot be started: {error}"
                ) from error
        self._connection, self._pid = ours, os.getpid()
        return ours


def _read_answer(answer: int, status: int, allowance: Allowance, cpu_s: float) -> tuple[bytes, float, bytes]:
    """Return (kind, processor time, content) of an answer. Raises `JobRefusedError` if the fork ended without one, and
    `_LostError` if its process did."""
    until_s = time.monotonic() + WALL_S + _PATIENCE_S
    read = partial(_read, answer, until_s=until_s, allowance=allowance)
    head = read(HEAD.size)
    if len(head) == HEAD.size:
        kind, used_s, num_bytes = HEAD.unpack(head)
        content = read(num_bytes)
        if len(content) == num_bytes:
            return kind, used_s, bytes(content)
    if len(_read(status, 4, until_s=until_s, allowance=allowance)) < 4:
        raise _LostError
    allowance.spend_document_s(cpu_s)
    raise JobRefusedError("crash")


def _read(pipe: int, num_bytes: int, *, until_s: float, allowance: Allowance) -> bytearray:
    """Read so many bytes, or what there is before the end."""
    content = bytearray(num_bytes)
    view, done = memoryview(content), 0
    while done < num_bytes:
        if not select.select([pipe], [], [], _LOOK_S)[0]:
            allowance.cancellation.check()
            if time.monotonic() > until_s:
                raise _LostError
            continue
        num_read = os.readv(pipe, [view[done:]])
        if not num_read:
            break
        done += num_read
    view.release()
    del content[done:]
    return content


def check_installed() -> None:
    """Raise `MissingExtraError` without the package that draws PDFs."""
    import importlib.util

    if importlib.util.find_spec("pypdfium2") is None:
        raise MissingExtraError("a PDF", package="pypdfium2", extra="documents")


DOCUMENT_PROCESS = DocumentProcess()


def _end() -> None:
    with suppress(OSError):
        DOCUMENT_PROCESS.close()


atexit.register(_end)

"""Render untrusted templates in processes with limits (`render_worker.py`). A few of them serve all templates and
threads of this process.

A process starts when it is needed (in a tenth of a second), compiles each template once, and ends with this process,
even if this one is killed. A forked child starts its own processes.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import multiprocessing.spawn
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from seesay.system.liveness import Progress
from seesay.templates.json_pieces import dump_in_pieces
from seesay.templates.render_worker import FAILED, IS_LAST, LIMIT, RAISED, SYNTAX, TEXT, UNSAFE

MAX_CHARS = 32 << 20
"""Largest output in characters."""
MAX_PROCESSES = 4
_PATIENCE_S = 0.01
"""After this wait for a free process, another one is started."""
_LOOK_S = 0.5
_MAX_TEMPLATES = 64
"""Number of templates that a process compiles before it is replaced."""

_PIECE_BYTES = 1 << 16
_ENVIRONMENT = ("LD_LIBRARY_PATH", "TZ", "LANG", "LC_ALL", "LC_TIME")

RenderErrorKind = Literal["syntax", "raised", "unsafe", "limit", "failed", "unavailable"]
_KINDS: Mapping[int, RenderErrorKind] = {
    SYNTAX: "syntax",
    RAISED: "raised",
    UNSAFE: "unsafe",
    LIMIT: "limit",
    FAILED: "failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderLimits:
    """Limits of one rendering: processor time; wall-clock time, for a busy machine; memory. A process that holds more
    than `kept_bytes` afterwards is replaced."""

    cpu_s: float = 10.0
    wall_s: float = 60.0
    memory_bytes: int = 1 << 30
    kept_bytes: int = 256 << 20


class RenderError(Exception):
    """A template could not be rendered.

    kind: 'syntax' (not a template), 'raised' (by the template, or an undefined value), 'unsafe' (refused by the
    sandbox), 'limit' (time, memory or size), 'failed' (any other Python error), 'unavailable' (no process could be
    started).
    """

    def __init__(self, kind: RenderErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _StuckError(RenderError):
    """The process does not run, although it was asked."""

    def __init__(self) -> None:
        super().__init__("unavailable", "the process that renders chat templates does not respond: send it again")


class BoundedTemplate:
    """A template that is compiled when it is created, by a process of `pool`, or else of the one that this process has.
    Raises RenderError if `source` is invalid. Thread-safe."""

    __slots__ = ("_key", "_pool", "_source")

    def __init__(self, source: str, pool: RenderPool | None = None) -> None:
        self._source = source
        self._pool = _pool if pool is None else pool
        self._key = hashlib.blake2b(source.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        self._ask(None)

    def render(self, context: Mapping[str, object]) -> str:
        """Return the output. `context` holds plain JSON values. Raises RenderError."""
        return self._ask(context)

    def _ask(self, context: Mapping[str, object] | None) -> str:
        try:
            return self._ask_once(context)
        except _StuckError:  # the process is replaced
            return self._ask_once(context)

    def _ask_once(self, context: Mapping[str, object] | None) -> str:
        message = {"key": self._key, "context": context}
        worker = self._pool.take()
        is_fine = False
        try:
            if self._key not in worker.known:
                message["source"] = self._source
            data = b"".join(piece.encode("utf-8", "surrogatepass") for piece in dump_in_pieces(message))
            answer = worker.ask(data)
            kind, is_fine = answer[0] & ~IS_LAST, not answer[0] & IS_LAST
            if kind != SYNTAX:
                worker.known.add(self._key)
        finally:
            self._pool.give_back(worker, is_fine=is_fine and len(worker.known) < _MAX_TEMPLATES)
        text = str(memoryview(answer)[1:], "utf-8", "surrogatepass")
        if kind != TEXT:
            raise RenderError(_KINDS[kind], text)
        return text


class _Worker:
    """One process, used by one thread at a time. `known`: keys of the templates that it has compiled."""

    def __init__(self, limits: RenderLimits) -> None:
        """Start the process. Raises RenderError if it cannot be started."""
        self._limits = limits
        self.known: set[str] = set()
        settings = {
            "sys_path": [str(Path(path).absolute()) for path in sys.path],
            "memory_bytes": limits.memory_bytes,
            "kept_bytes": limits.kept_bytes,
            "cpu_s": limits.cpu_s,
            "max_chars": MAX_CHARS,
        }
        program = str(Path(__file__).with_name("render_worker.py"))
        executable = os.fsdecode(multiprocessing.spawn.get_executable() or sys.executable)
        try:
            self._process = subprocess.Popen(
                [executable, "-I", "-S", program, json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,  # Ctrl-C in the terminal is for the parent, whose end ends the process
                cwd="/",
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            )
        except (OSError, ValueError) as error:
            reason = f"the process that renders chat templates cannot be started ({executable}): {error}"
            raise RenderError("unavailable", reason) from error
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, data: bytes) -> bytearray:
        """Return the answer to a request. Raises RenderError if there is none; then the process must not be used
        again."""
        deadline = time.monotonic() + self._limits.wall_s
        self._send(len(data).to_bytes(8, "little") + data, deadline)
        return self._receive(deadline)

    def _send(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._to, view) :]
            except BlockingIOError:
                self._wait(self._to, select.POLLOUT, deadline)
            except BrokenPipeError:
                raise self._explain_end() from None

    def _receive(self, deadline: float) -> bytearray:
        """Return an answer: its size comes first, for a short one in the same piece."""
        self._wait(self._from, select.POLLIN, deadline)
        data, size = bytearray(), None
        while size is None or len(data) < size:
            try:
                piece = os.read(self._from, _PIECE_BYTES if size is None else size - len(data))
            except BlockingIOError:
                self._wait(self._from, select.POLLIN, deadline)
                continue
            if not piece:
                raise self._explain_end()
            data += piece
            if size is None and len(data) >= 8:
                size = int.from_bytes(data[:8], "little")
                if not 0 < size <= 1 + 4 * MAX_CHARS:
                    raise RenderError("limit", "its process gave an invalid answer")
                del data[:8]
        return data

    def _wait(self, descriptor: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        progress = Progress(self._process.pid)
        while not poll.poll(1000 * max(0.0, min(_LOOK_S, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                raise RenderError("limit", f"it ran longer than {self._limits.wall_s:g} s")
            if progress.is_stuck():
                raise _StuckError

    def _explain_end(self) -> RenderError:
        """Return why the process ended in the middle of a request."""
        import signal

        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        status = self._process.returncode
        if status == -signal.SIGPROF:
            return RenderError("limit", f"it ran longer than {self._limits.cpu_s:g} s")
        if status is None or status <= 0:
            return RenderError("limit", f"its process was killed (status {status})")
        return RenderError(
            "unavailable",
            f"the process that renders chat templates ended at once (status {status}): is jinja2 installed?",
        )

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        self._close_pipes()

    def forget(self) -> None:
        """In a forked child: drop a process that belongs to the parent, without ending it."""
        self._process.returncode = 0
        self._close_pipes()

    def _close_pipes(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()


class RenderPool:
    """Render processes: one, and more while it is busy, up to `MAX_PROCESSES`. A forked child starts its own."""

    def __init__(self, limits: RenderLimits = RenderLimits()) -> None:
        self._limits = limits
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[_Worker] = []
        self._workers: set[_Worker] = set()
        self._num_starting = 0

    def take(self) -> _Worker:
        """Return a process for one request; call `give_back` afterwards. Raises RenderError if there is none and none
        can be started."""
        may_start = True
        while (worker := self._take_idle(may_start=may_start)) is None:
            try:
                return self._start()
            except RenderError:
                if not self._workers:
                    raise
                may_start = False  # such as without descriptors: one that is busy will be free
        return worker

    def _take_idle(self, *, may_start: bool) -> _Worker | None:
        """Wait for a free process. Returns None where the caller is to start another one: there is none, or none is
        free soon and it `may_start` one."""
        with self._changed:
            waits_for_s = _PATIENCE_S
            while True:
                while self._idle:
                    worker = self._idle.pop()
                    if worker.is_alive:
                        return worker
                    self._end(worker)
                count = len(self._workers) + self._num_starting
                has_place = may_start and count < MAX_PROCESSES
                if not count or (has_place and waits_for_s <= 0):
                    self._num_starting += 1
                    return None
                began = time.monotonic()
                self._changed.wait(max(waits_for_s, 0.001) if has_place else None)
                waits_for_s -= time.monotonic() - began

    def _start(self) -> _Worker:
        try:
            worker = _Worker(self._limits)
        except BaseException:
            with self._changed:
                self._num_starting -= 1
                self._changed.notify()
            raise
        with self._changed:
            self._num_starting -= 1
            self._workers.add(worker)
        return worker

    def give_back(self, worker: _Worker, *, is_fine: bool) -> None:
        with self._changed:
            if is_fine:
                self._idle.append(worker)
            else:
                self._end(worker)
            self._changed.notify()

    def _end(self, worker: _Worker) -> None:
        self._workers.discard(worker)
        worker.close()

    def close(self) -> None:
        """End all processes. The next request starts a new one."""
        with self._changed:
            for worker in list(self._workers):
                self._end(worker)
            self._idle.clear()

    def forget(self) -> None:
        """In a forked child: drop the parent's processes, and replace locks that the parent's threads may hold."""
        workers = self._workers
        self._reset()
        for worker in workers:
            worker.forget()


_pools: weakref.WeakSet[RenderPool] = weakref.WeakSet()
_pool = RenderPool()


def _forget_all() -> None:
    for pool in list(_pools):
        pool.forget()


os.register_at_fork(after_in_child=_forget_all)
atexit.register(_pool.close)

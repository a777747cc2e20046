"""The process that tries grammars, `python -m seesay.grammars.trial_child`: each is compiled in a fork of it, within
limits, so that one that is too large or too slow, or crashes the compiler, costs that fork alone.

Its first message is the vocabulary; then each is (number, kind, source, whether it is open), answered by (number, error
or '', program, what it does not hold). While it compiles it says (-1, '', '', []) once a second. It ends with the
process that reads its answers.
"""

from __future__ import annotations

import gc
import os
import queue
import resource
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from seesay.config.grammar import Grammar
from seesay.errors import RequestError
from seesay.grammars.compile import TokenTable, compile_program, find_fault
from seesay.grammars.frames import read_frame, write_frame
from seesay.grammars.program import make_program
from seesay.grammars.schemas.faults import name_place

CPU_S = 3
"""Most processor time of one compilation."""
WALL_S = 60.0
"""Its longest duration, on a busy machine."""
MEMORY_BYTES = 512 << 20
"""Most memory that it takes beside what the process has."""
PATIENCE_S = 0.1
"""A compilation that has had more processor time leaves the processors to others, by its niceness: what is small is
compiled first, on a busy machine too."""
LARGE = 50_000
"""Characters of a source that takes long, as is known before."""
NICENESS = 10
MAX_FORKS = 8
"""More than one owner may have at a time (`engine.front`): who has a small grammar waits for none of another's."""
BEAT, BEAT_S = -1, 1.0
"""The number of a message that says that this process responds, and how often it is sent."""
_PROCESS_CLOCK = 2
"""Of the ids of Linux's clocks: that of all threads of a process."""
_MAX_ERROR_CHARS = 2000
_MAX_ANSWER_BYTES = 64 << 20
_PREFIX = "response_format: the grammar cannot be compiled: "

TOO_SLOW = f"it takes more than {CPU_S} s to compile: make it smaller"
TOO_LARGE = f"it takes more than {MEMORY_BYTES >> 20} MiB to compile: make it smaller"
CRASHED = "the compiler cannot take it: make it smaller, or less deeply nested"


@dataclass(slots=True)
class _Trial:
    number: int
    pid: int
    pipe: int
    started_s: float
    is_nice: bool = False
    data: bytes = b""

    @property
    def until_s(self) -> float:
        return self.started_s + WALL_S

    def find_cpu_s(self) -> float:
        """Return how much processor time it has had."""
        try:
            return time.clock_gettime((~self.pid << 3) | _PROCESS_CLOCK)
        except OSError:  # it has ended
            return 0.0

    def yield_processors(self) -> None:
        """Let others run first."""
        self.is_nice = True
        with suppress(OSError):  # it has ended
            os.setpriority(os.PRIO_PROCESS, self.pid, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)


def main() -> None:
    warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads; ours only waits for input
    source, sink = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    gc.disable()  # a sixth of the imports were collections that found no garbage
    table = TokenTable(read_frame(source))
    gc.freeze()  # what the forks share, theirs need not visit
    gc.enable()
    write_frame(sink, (0, "", "", []))
    asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
    wake_read, wake_write = os.pipe()
    trials: dict[int, _Trial] = {}
    leaving: list[int] = []

    def listen() -> None:
        try:
            while True:
                asked.put(read_frame(source))
                os.write(wake_write, b"x")
        except EOFError:
            for trial in list(trials.values()):
                with suppress(ProcessLookupError):
                    os.kill(trial.pid, signal.SIGKILL)
            os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    beat_at_s = 0.0
    while True:
        while len(trials) < MAX_FORKS and not asked.empty():
            trial = _start(table, *asked.get())
            trials[trial.pipe] = trial
        ready, _, _ = select.select([wake_read, *trials], [], [], _find_limit_s(trials.values()))
        if trials and time.monotonic() >= beat_at_s:
            beat_at_s = time.monotonic() + BEAT_S
            write_frame(sink, (BEAT, "", "", []))
        if wake_read in ready:
            os.read(wake_read, 4096)
        for trial in list(trials.values()):
            if not trial.is_nice and trial.find_cpu_s() >= PATIENCE_S:
                trial.yield_processors()
            if trial.pipe in ready:
                piece = os.read(trial.pipe, 65536)
                trial.data += piece
                is_over = not piece
            else:
                is_over = time.monotonic() > trial.until_s
            if is_over:
                del trials[trial.pipe]
                write_frame(sink, (trial.number, *_finish(trial)))
                leaving.append(trial.pid)
        leaving = [pid for pid in leaving if os.waitpid(pid, os.WNOHANG)[0] == 0]


def _find_limit_s(trials: Collection[_Trial]) -> float | None:
    """Return how long to wait for something to read."""
    if not trials:
        return None
    return BEAT_S if all(trial.is_nice for trial in trials) else PATIENCE_S


def _start(table: TokenTable, number: int, kind: str, source: str, is_open: bool) -> _Trial:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _try(table, Grammar(kind=kind, source=source, is_open=is_open), writing)
    os.close(writing)
    trial = _Trial(number, pid, reading, time.monotonic())
    if len(source) > LARGE:
        trial.yield_processors()
    return trial


def _try(table: TokenTable, grammar: Grammar, pipe: int) -> NoReturn:
    """Compile within limits, say how that ended, and end this fork."""
    error, program = "", Grammar(kind="lark", source="")
    gc.disable()  # of what a compilation leaves behind, nothing outlives this fork
    try:
        used = int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        program = make_program(grammar)
        error = find_fault(table, compile_program(table, program.source))
    except MemoryError:
        error = TOO_LARGE
    except RequestError as refused:
        error = refused.message
    except RecursionError:
        error = CRASHED
    except ValueError as fault:
        error = _name_place(table, grammar, str(fault))
    except BaseException as failure:
        error = str(failure) or type(failure).__name__
    if error and not error.startswith("response_format"):
        error = _PREFIX + error
    data = msgspec.msgpack.encode(
        (error[:_MAX_ERROR_CHARS].encode("utf-8", "replace").decode(), *_spell(program, error))
    )
    with os.fdopen(pipe, "wb") as stream:
        stream.write(data[:_MAX_ANSWER_BYTES])
    os._exit(0)


def _name_place(table: TokenTable, grammar: Grammar, error: str) -> str:
    try:
        return name_place(table, grammar, error)
    except (ValueError, RecursionError, MemoryError):
        return error


def _spell(program: Grammar, error: str) -> tuple[str, list[str]]:
    return ("", []) if error else (program.source, list(program.left_out))


def _finish(trial: _Trial) -> tuple[str, str, list[str]]:
    """Begin to end a fork, which may take long where the processors are busy, and wait for it only if it did not say
    how its trial ended: the caller is to wait for its end. Returns the error, or '', the program, and what that does
    not hold."""
    os.kill(trial.pid, signal.SIGKILL)
    os.close(trial.pipe)
    try:
        error, source, left_out = msgspec.msgpack.decode(trial.data)
    except (msgspec.DecodeError, ValueError):
        ended = os.waitid(os.P_PID, trial.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None  # it was waited for
        is_slow = time.monotonic() > trial.until_s or ended.si_status in (signal.SIGXCPU, signal.SIGKILL)
        return _PREFIX + (TOO_SLOW if is_slow else CRASHED), "", []
    return error, source, left_out


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)
    main()

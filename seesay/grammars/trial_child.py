"""The process that tries grammars, `python -m seesay.grammars.trial_child`: each is compiled in a fork of it, within
limits, so that one that is too large or too slow, or crashes the compiler, costs that fork alone.

Its first message is the vocabulary; then each is (number, kind, source, whether it is open), answered by (number, error
or '', program, what it does not hold, whether it takes long), or (number) of one that is withdrawn, which is not
answered. While it compiles it says (-1, '', '', [], False) once a second. It ends with the process that reads its
answers.

Grammars that take long have forks of their own, so that those of others never wait for them: what has taken
`BUDGET_S` while these are all in use is given up, and begins again when one of them is free.
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
from collections import deque
from collections.abc import Collection, Iterator
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
from seesay.grammars.schemas.faults import leave_out_refused, name_place

_Question = tuple[int, str, str, bool]
_Answer = tuple[str, str, list[str], bool]

CPU_S = 3
"""Most processor time of one compilation."""
WALL_S = 60.0
"""Its longest duration, on a busy machine."""
MEMORY_BYTES = 512 << 20
"""Most memory that it takes beside what the process has."""
PATIENCE_S, BUDGET_S = 0.1, 0.2
"""A compilation that has had more processor time than the first leaves the processors to others, by its niceness: what
is small is compiled first, on a busy machine too. One that has had more than the second takes long."""
LARGE = 50_000
"""Characters of a source that takes more than the first, as is known before."""
NICENESS, SLOW_NICENESS = 5, 15
"""The second is that of what takes long."""
MAX_QUICK, MAX_SLOW = 4, 4
"""Most forks for grammars that may be quick, and for those that take long."""
BEAT, BEAT_S = -1, 1.0
"""The number of a message that says that this process responds, and how often it is sent."""
_PROCESS_CLOCK = 2
"""Of the ids of Linux's clocks: that of all threads of a process."""
_NOTHING: _Answer = ("", "", [], False)
_MAX_ERROR_CHARS = 2000
_MAX_ANSWER_BYTES = 64 << 20
_PREFIX = "response_format: the grammar cannot be compiled: "

TOO_SLOW = f"it takes more than {CPU_S} s to compile: make it smaller"
TOO_LARGE = f"it takes more than {MEMORY_BYTES >> 20} MiB to compile: make it smaller"
CRASHED = "the compiler cannot take it: make it smaller, or less deeply nested"


@dataclass(slots=True)
class _Trial:
    question: _Question
    pid: int
    pipe: int
    started_s: float
    is_nice: bool = False
    is_slow: bool = False
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
        """Let others run first, and more of them if it takes long."""
        self.is_nice = True
        niceness = SLOW_NICENESS if self.is_slow else NICENESS
        with suppress(OSError):  # it has ended
            os.setpriority(os.PRIO_PROCESS, self.pid, os.getpriority(os.PRIO_PROCESS, 0) + niceness)

    def kill(self) -> None:
        """Begin to end the fork, which may take long where the processors are busy."""
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.pipe)


class _Trials:
    """The trials that run, by the pipe that says how they ended, and those that have to begin again."""

    def __init__(self, table: TokenTable) -> None:
        self.running: dict[int, _Trial] = {}
        self._table = table
        self._asked: deque[_Question] = deque()
        self._put_back: deque[_Question] = deque()
        self._leaving: list[int] = []

    def take(self, message: _Question | tuple[int]) -> None:
        """Note what is asked, or end what is withdrawn."""
        if len(message) > 1:
            self._asked.append(message)
            return
        for questions in (self._asked, self._put_back):
            for question in [each for each in questions if each[0] == message[0]]:
                questions.remove(question)
        for trial in [each for each in self.running.values() if each.question[0] == message[0]]:
            self._end(trial)

    def begin(self) -> None:
        """Start what was asked, and what was put back, where there is a fork for it."""
        while self._put_back and self._num_slow < MAX_SLOW:
            self._add(_start(self._table, *self._put_back.popleft(), is_slow=True))
        while self._asked and len(self.running) - self._num_slow < MAX_QUICK:
            self._add(_start(self._table, *self._asked.popleft()))

    @property
    def _num_slow(self) -> int:
        return sum(trial.is_slow for trial in self.running.values())

    def _add(self, trial: _Trial) -> None:
        self.running[trial.pipe] = trial

    def advance(self, ready: Collection[int]) -> Iterator[tuple[int, _Answer]]:
        """Read from the pipes that are ready, and put what takes long in its place. Yields what is over."""
        for trial in list(self.running.values()):
            if trial.pipe in ready:
                piece = os.read(trial.pipe, 65536)
                trial.data += piece
                is_over = not piece
            else:
                is_over = time.monotonic() > trial.until_s
                if not is_over:
                    self._judge(trial)
            if is_over:
                del self.running[trial.pipe]
                yield trial.question[0], _finish(trial)
                self._leaving.append(trial.pid)
        self._leaving = [pid for pid in self._leaving if os.waitpid(pid, os.WNOHANG)[0] == 0]

    def _judge(self, trial: _Trial) -> None:
        """Look at the processor time of a trial that has said nothing."""
        if trial.is_slow:
            return
        used_s = trial.find_cpu_s()
        if not trial.is_nice and used_s >= PATIENCE_S:
            trial.yield_processors()
        if used_s < BUDGET_S:
            return
        if self._num_slow < MAX_SLOW:
            trial.is_slow = True
            trial.yield_processors()
        elif not trial.data:
            self._put_back.append(trial.question)
            self._end(trial)

    def _end(self, trial: _Trial) -> None:
        """End a trial that is not over."""
        del self.running[trial.pipe]
        trial.kill()
        self._leaving.append(trial.pid)

    def kill(self) -> None:
        """End all forks, from any thread."""
        for trial in list(self.running.values()):
            with suppress(ProcessLookupError):
                os.kill(trial.pid, signal.SIGKILL)


def main() -> None:
    warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads; ours only waits for input
    source, sink = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    gc.disable()  # a sixth of the imports were collections that found no garbage
    table = TokenTable(read_frame(source))
    gc.freeze()  # what the forks share, theirs need not visit
    gc.enable()
    write_frame(sink, (0, *_NOTHING))
    received: queue.SimpleQueue[_Question | tuple[int]] = queue.SimpleQueue()
    wake_read, wake_write = os.pipe()
    trials = _Trials(table)

    def listen() -> None:
        try:
            while True:
                received.put(tuple(read_frame(source)))
                os.write(wake_write, b"x")
        except EOFError:
            trials.kill()
            os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    beat_at_s = 0.0
    while True:
        while not received.empty():
            trials.take(received.get())
        trials.begin()
        ready, _, _ = select.select([wake_read, *trials.running], [], [], _find_limit_s(trials.running.values()))
        if trials.running and time.monotonic() >= beat_at_s:
            beat_at_s = time.monotonic() + BEAT_S
            write_frame(sink, (BEAT, *_NOTHING))
        if wake_read in ready:
            os.read(wake_read, 4096)
        for number, answer in trials.advance(ready):
            write_frame(sink, (number, *answer))


def _find_limit_s(trials: Collection[_Trial]) -> float | None:
    """Return how long to wait for something to read."""
    if not trials:
        return None
    return BEAT_S if all(trial.is_slow for trial in trials) else PATIENCE_S


def _start(table: TokenTable, number: int, kind: str, source: str, is_open: bool, *, is_slow: bool = False) -> _Trial:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _try(table, Grammar(kind=kind, source=source, is_open=is_open), writing)
    os.close(writing)
    trial = _Trial((number, kind, source, is_open), pid, reading, time.monotonic(), is_slow=is_slow)
    if is_slow or len(source) > LARGE:
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
        program, matcher = _compile(table, grammar)
        error = find_fault(table, matcher)
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


def _compile(table: TokenTable, grammar: Grammar) -> tuple[Grammar, Any]:
    """Return (the program of a grammar, without the optional schemas that the compiler refuses, its matcher)."""
    program = make_program(grammar)
    try:
        return program, compile_program(table, program.source)
    except ValueError:
        if (rest := leave_out_refused(table, grammar)) is None:
            raise
    program = make_program(rest)
    return program, compile_program(table, program.source)


def _name_place(table: TokenTable, grammar: Grammar, error: str) -> str:
    try:
        return name_place(table, grammar, error)
    except (ValueError, RecursionError, MemoryError):
        return error


def _spell(program: Grammar, error: str) -> tuple[str, list[str]]:
    return ("", []) if error else (program.source, list(program.left_out))


def _finish(trial: _Trial) -> _Answer:
    """Begin to end a fork, and wait for its end only if it did not say how its trial ended: the caller is to wait for
    it. Returns the error, or '', the program, what that does not hold, and whether it takes long."""
    trial.kill()
    try:
        error, source, left_out = msgspec.msgpack.decode(trial.data)
    except (msgspec.DecodeError, ValueError):
        ended = os.waitid(os.P_PID, trial.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None  # it was waited for
        is_slow = time.monotonic() > trial.until_s or ended.si_status in (signal.SIGXCPU, signal.SIGKILL)
        return _PREFIX + (TOO_SLOW if is_slow else CRASHED), "", [], trial.is_slow
    return error, source, left_out, trial.is_slow


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)
    main()

"""The process that tries grammars, `python -m seesay.grammars.trial_child`: each is compiled in a fork of it, within
limits, so that one that is too large or too slow, or crashes the compiler, costs that fork alone.

Its first message is the vocabulary; then each is (number, kind, source), answered by (number, error or ''). While it
compiles it says (-1, '') once a second. It ends with the process that reads its answers.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from seesay.grammars.compile import compile_program, explain_no_beginning, make_compiler
from seesay.grammars.compiler_import import import_compiler
from seesay.grammars.frames import read_frame, write_frame
from seesay.grammars.productive import explain_dead_rule

CPU_S = 5
"""Most processor time of one compilation."""
WALL_S = 30.0
"""Its longest duration, on a busy machine."""
MEMORY_BYTES = 1 << 30
"""Most memory that it takes beside what the process has."""
COMPILED_BYTES = 64 << 20
"""Largest result."""
MAX_FORKS = 2
BEAT, BEAT_S = -1, 1.0
"""The number of a message that says that this process responds, and how often it is sent."""
_MAX_ERROR_BYTES = 2000

TOO_SLOW = f"it takes more than {CPU_S} s to compile: make it smaller"
TOO_LARGE = (
    f"it takes more than {MEMORY_BYTES >> 20} MiB to compile, or {COMPILED_BYTES >> 20} MiB compiled: make it smaller"
)
CRASHED = "the compiler cannot take it: make it smaller, or less deeply nested"


@dataclass(slots=True)
class _Trial:
    number: int
    pid: int
    pipe: int
    until_s: float
    data: bytes = b""


def main() -> None:
    warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads; ours only waits for input
    source, sink = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    gc.disable()  # a sixth of the imports were collections that found no garbage
    import_compiler()
    compiler = make_compiler(read_frame(source), num_threads=1)
    gc.freeze()  # what the forks share, theirs need not visit
    gc.enable()
    write_frame(sink, (0, ""))
    asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
    wake_read, wake_write = os.pipe()

    def listen() -> None:
        try:
            while True:
                asked.put(read_frame(source))
                os.write(wake_write, b"x")
        except EOFError:
            os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    trials: dict[int, _Trial] = {}
    beat_at_s = 0.0
    while True:
        while len(trials) < MAX_FORKS and not asked.empty():
            trial = _start(compiler, *asked.get())
            trials[trial.pipe] = trial
        ready, _, _ = select.select([wake_read, *trials], [], [], BEAT_S if trials else None)
        if trials and time.monotonic() >= beat_at_s:
            beat_at_s = time.monotonic() + BEAT_S
            write_frame(sink, (BEAT, ""))
        if wake_read in ready:
            os.read(wake_read, 4096)
        for trial in list(trials.values()):
            if trial.pipe in ready:
                piece = os.read(trial.pipe, 65536)
                trial.data += piece
                is_over = not piece
            else:
                is_over = time.monotonic() > trial.until_s
            if is_over:
                del trials[trial.pipe]
                write_frame(sink, (trial.number, _finish(trial)))


def _start(compiler: Any, number: int, kind: str, source: str) -> _Trial:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _compile(compiler, kind, source, writing)
    os.close(writing)
    return _Trial(number, pid, reading, time.monotonic() + WALL_S)


def _compile(compiler: Any, kind: str, source: str, pipe: int) -> NoReturn:
    """Compile within limits, say how that ended, and end this fork."""
    try:
        used = int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        compiled = compile_program(compiler, kind, source)
        is_large = compiled.memory_size_bytes > COMPILED_BYTES
        answer = TOO_LARGE if is_large else explain_dead_rule(kind, source) or explain_no_beginning(compiled)
    except MemoryError:
        answer = TOO_LARGE
    except BaseException as error:
        answer = TOO_LARGE if "bad_alloc" in str(error) else explain(str(error))
    os.write(pipe, b"=" + answer.encode("utf-8", "replace")[:_MAX_ERROR_BYTES])
    os._exit(0)


def explain(text: str) -> str:
    """Return what xgrammar said, without the place and the condition in its sources."""
    last = text.strip().splitlines()[-1] if text.strip() else "it is not valid"
    before, found, after = last.partition(": ")
    said = after if (found and "/cpp/" in before) or before.startswith("[") else last
    return said.partition(" is false: ")[2] if said.startswith("Check failed: ") and " is false: " in said else said


def _finish(trial: _Trial) -> str:
    """End a trial. Returns its error, or ''."""
    os.kill(trial.pid, signal.SIGKILL)
    _, status = os.waitpid(trial.pid, 0)
    os.close(trial.pipe)
    if trial.data.startswith(b"="):
        return trial.data[1:].decode("utf-8", "replace")
    if time.monotonic() > trial.until_s or (os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, 9)):
        return TOO_SLOW
    return CRASHED


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)
    main()

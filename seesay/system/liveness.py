"""Judge whether a child process still responds. Every process that seesay starts is judged by these rules.

A process that beats is judged by its beats (`Silence`), and one that only answers by whether it makes progress
(`Progress`). Time in which the judging process did not run itself does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

SUSPECT_S = 4.0
"""A process that beats once a second and has been silent for so long is reported as not responding."""
LIMIT_S = 30.0
"""A server process that has been silent for so long is killed."""
HELPER_LIMIT_S = 10.0
"""A process that holds no state, such as one that renders templates, is replaced after this silence."""
STOPPED_LIMIT_S = 2.0
"""One that a signal has stopped is replaced after this time: no load on the machine explains it."""
_MAX_GAP_S = 1.0
"""Processes are looked at more often than this. A longer gap counts as no more: the machine was suspended, or a
container or the terminal's job stopped, and the children with it."""


class Silence:
    """For how long each process has been silent, in time in which this process was awake to hear it."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit_s = limit_s
        self._clock = clock
        self._looked_at_s = clock()
        self._silent_s: dict[int, float] = {}

    def hear(self, index: int = 0) -> None:
        """Note a beat of a process. From the first on, more are expected."""
        self._silent_s[index] = 0.0

    def forget(self, index: int = 0) -> None:
        """Expect no more beats of a process: it has ended."""
        self._silent_s.pop(index, None)

    def look(self) -> dict[int, float]:
        """Return for how many seconds each process has been silent. Call it after all beats that have arrived were
        heard, and more often than once a second."""
        now_s = self._clock()
        passed_s, self._looked_at_s = min(now_s - self._looked_at_s, _MAX_GAP_S), now_s
        for index in self._silent_s:
            self._silent_s[index] += passed_s
        return self._silent_s

    def find_hung(self) -> dict[int, float]:
        """Return the processes that `look` finds silent for longer than the limit, and for how many seconds."""
        return {index: silent_s for index, silent_s in self.look().items() if silent_s > self.limit_s}


class _Work(NamedTuple):
    state: str  # the letter of the state in /proc
    num_ticks: int  # of processor time


class Progress:
    """Whether the process `pid`, which was asked for something, works on it."""

    def __init__(self, pid: int, limit_s: float = HELPER_LIMIT_S) -> None:
        self._pid = pid
        self._limit_s = limit_s
        self._silence = Silence(limit_s)
        self._silence.hear()
        self._num_ticks = -1

    def is_stuck(self) -> bool:
        """Return whether the process has neither computed nor waited for a processor or a disk for longer than the
        limit, or than `STOPPED_LIMIT_S` where a signal has stopped it. Call it more often than once a second."""
        work = _read_work(self._pid)
        if work is None or work.state in "RD" or work.num_ticks != self._num_ticks:
            self._silence.hear()
        self._num_ticks = -1 if work is None else work.num_ticks
        is_stopped = work is not None and work.state == "T"
        self._silence.limit_s = min(self._limit_s, STOPPED_LIMIT_S) if is_stopped else self._limit_s
        return bool(self._silence.find_hung())


def is_stopped(pid: int) -> bool:
    """Return whether a process was stopped by a signal. False where the system does not tell."""
    work = _read_work(pid)
    return work is not None and work.state == "T"


def _read_work(pid: int) -> _Work | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return _Work(fields[0], int(fields[11]) + int(fields[12]))

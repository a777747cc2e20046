"""Processor time of processes, as Linux counts it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def cpu_s(pid: int) -> float:
    """Return the processor time of all threads of a process, user and system; 0 for one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile: its children are another thread's now
            children += map(int, task.read_text().split())
    return children

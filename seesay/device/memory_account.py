"""Account for the host memory of a process: what is in use, what the allocator holds free, what files are mapped.

Reads `/proc` and glibc; elsewhere the figures are zero.
"""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass
from pathlib import Path

_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _MallInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAccount:
    """Host memory of one process, in bytes.

    resident: all that is in memory: anonymous, file and shared. anonymous: heaps, stacks and large allocations.
    file: pages of mapped files, such as libraries and weights, which the kernel may drop. shared: shared-memory
    segments. malloc_used, malloc_free: allocated in glibc's heaps, and free in them; free pages that were returned to
    the system count as free, too. malloc_mapped: large allocations, each with a mapping of its own, touched or not.
    The last three are known of the calling process alone.
    """

    resident: int = 0
    anonymous: int = 0
    file: int = 0
    shared: int = 0
    malloc_used: int = 0
    malloc_free: int = 0
    malloc_mapped: int = 0

    @classmethod
    def read(cls, pid: int | None = None) -> MemoryAccount:
        """Return the account of this process, or of `pid`. Zeros for a process that is gone."""
        try:
            text = Path(f"/proc/{pid or 'self'}/status").read_text()
        except OSError:
            text = ""
        found = {name: int(size) << 10 for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
        heap = _read_malloc() if pid in (None, os.getpid()) else _MallInfo()
        return cls(
            resident=found.get("VmRSS", 0),
            anonymous=found.get("RssAnon", 0),
            file=found.get("RssFile", 0),
            shared=found.get("RssShmem", 0),
            malloc_used=heap.uordblks,
            malloc_free=heap.fordblks,
            malloc_mapped=heap.hblkhd,
        )


def find_children() -> list[int]:
    """Return the ids of the processes that this one has started and that have not ended."""
    files = Path("/proc/self/task").glob("*/children")
    return sorted(int(pid) for file in files for pid in file.read_text().split())


def _read_malloc() -> _MallInfo:
    """Return the counts of all heaps of glibc (2.33 or later)."""
    try:
        read = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return _MallInfo()
    read.restype = _MallInfo
    info = read()
    assert isinstance(info, _MallInfo)
    return info

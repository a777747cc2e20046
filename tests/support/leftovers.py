"""What a process has open, runs and has started: of the same kinds before and after, or else something leaks.

Some things begin when they are first needed and stay: processes that render templates and threads that hash. How many
there are depends on how many requests came at once, so they are ended or left out before anything is counted.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from seesay.templates import sandbox

_SHARED_THREADS = ("seesay-hash", "seesay-bodies")
"""Threads of pools that a process has one of."""


def end_renderers() -> None:
    """End the processes that render templates, while nobody asks. They begin again when they are needed."""
    sandbox._pool.close()


def list_files(pid: int | str | None = "self") -> Counter[str]:
    """Return the kinds of open files, such as 'socket' or 'anon_inode:[eventpoll]', or their paths."""
    files = Counter[str]()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            files[re.sub(r":\[\d+\]$", "", str(entry.readlink()))] += 1
    return files


def list_threads() -> Counter[str]:
    """Return the names of the threads of this process, without their numbers."""
    names = [re.sub(r"[-_ (]*\d.*$", "", thread.name) for thread in threading.enumerate()]
    return Counter(name for name in names if not name.startswith(_SHARED_THREADS))


def count_threads(pid: int | str | None) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def list_children() -> set[int]:
    """Return the ids of the processes that this one has started."""
    return {int(pid) for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()}


def wait_until_no_more(count: Callable[[], Counter[str]], before: Counter[str], *, timeout_s: float = 120) -> None:
    """Wait until `count` returns no more of any kind than there was `before`."""
    deadline_s = time.monotonic() + timeout_s
    while left := count() - before:
        assert time.monotonic() < deadline_s, f"left: {dict(left)}, before: {dict(before)}"
        time.sleep(0.05)

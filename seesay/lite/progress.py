"""How far a run is, on standard error: a bar on a terminal, elsewhere a line every 30 seconds and one at the end."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tqdm import tqdm

INTERVAL_S = 30.0

Wait = Callable[[float], bool]
"""Waits so many seconds, or until the end of the work. Returns whether it has ended."""


class Progress:
    """Shows how many of `total` parts of a work are done, while its `with` block runs.

    unit: the name of the parts, in the plural. A line is written also while a part takes long, with the seconds since
    the beginning, so that one sees that the work goes on. clock, wait: for tests.
    """

    def __init__(
        self,
        name: str,
        total: int,
        unit: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Wait | None = None,
    ) -> None:
        self._name, self._total, self._unit = name, total, unit
        self._num_done = 0
        self._clock, self._began_s = clock, clock()
        self._ended = threading.Event()
        self._wait = wait or self._ended.wait
        self._stream = sys.stderr
        self._bar = tqdm(total=total, desc=name, unit=f" {unit}") if self._stream.isatty() else None
        self._thread = threading.Thread(target=self._print_lines, name="seesay-progress", daemon=True)

    def __enter__(self) -> Self:
        if self._bar is None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()
            return
        self._ended.set()
        self._thread.join()
        if kind is None:
            self._print_line()

    def advance(self) -> None:
        """Say that one more part is done."""
        self._num_done += 1
        if self._bar is not None:
            self._bar.update()

    def _print_lines(self) -> None:
        while not self._wait(INTERVAL_S):
            self._print_line()

    def _print_line(self) -> None:
        taken_s = self._clock() - self._began_s
        done = f"{self._num_done} of {self._total} {self._unit}"
        print(f"{self._name}: {done}, {taken_s:.0f} s", file=self._stream, flush=True)

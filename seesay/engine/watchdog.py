"""Detects hangs: a kernel that never ends, a lock that is never released."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

GPU_LIMIT_S, CPU_LIMIT_S = 120.0, 3600.0
"""A step, or a call of a vision tower, that takes longer is treated as hung. On a CPU a step may take minutes."""
_LONGEST_START_S = 3600.0

PARTS = ENGINE, ENCODER = "engine", "encoder"
_WORK = {ENGINE: "a step of the engine", ENCODER: "a call of the vision encoder"}
_POLLS = 10


class Fault(NamedTuple):
    """Why an engine answers nothing now: which part is at fault, and how."""

    part: str
    reason: str


def hang_limit_s(step_timeout_s: float | None, device: str) -> float:
    """The limit in seconds on `device`, where the configuration says `step_timeout_s`."""
    if step_timeout_s is not None:
        return step_timeout_s
    return CPU_LIMIT_S if device.startswith("cpu") else GPU_LIMIT_S


def exchange_limit_s(step_timeout_s: float | None, device: str) -> float:
    """Seconds after which the library that exchanges tensors between ranks gives up. A hang is noticed before that; one
    rank may wait long for another that loads."""
    return _LONGEST_START_S + hang_limit_s(step_timeout_s, device)


def find_hung(busy_s: Mapping[str, float], limit_s: float) -> Fault | None:
    """The part that has been busy for longer than `limit_s`, if there is one."""
    for part, seconds in busy_s.items():
        if seconds > limit_s:
            return Fault(part, f"{_WORK[part]} hangs: it has taken {seconds:.0f} s")
    return None


class Watchdog:
    """A thread that calls `on_hang` once, when a part has been busy for longer than `limit_s`."""

    def __init__(
        self, busy_s: Callable[[], Mapping[str, float]], limit_s: float, on_hang: Callable[[Fault], None]
    ) -> None:
        self._busy_s = busy_s
        self._limit_s = limit_s
        self._on_hang = on_hang
        self._is_stopped = threading.Event()
        threading.Thread(target=self._run, name="seesay-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Watch no longer. Waits for nothing."""
        self._is_stopped.set()

    def _run(self) -> None:
        while not self._is_stopped.wait(min(1.0, self._limit_s / _POLLS)):
            if hung := find_hung(self._busy_s(), self._limit_s):
                self._on_hang(hung)
                return

"""Notices a front process whose event loop hangs: the loop sends a beat from time to time, and the supervisor counts
for how long it has heard none."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from seesay.engine.process.link import LinkClosedError
from seesay.serving.fronts import messages

_BEAT_S = 1.0
_BEATS_PER_LIMIT = 4
_MAX_GAP_S = 1.0
"""The supervisor looks more often than this. A longer gap counts as no more: the machine was suspended, or a container
or the terminal's job stopped, and the fronts with it."""


def start_beating(send: Callable[[messages.ToSupervisor], None], limit_s: float) -> None:
    """Let the running event loop send beats, several of them in `limit_s`, until it ends."""
    loop = asyncio.get_running_loop()
    beat_s = min(_BEAT_S, limit_s / _BEATS_PER_LIMIT)

    def beat() -> None:
        with contextlib.suppress(LinkClosedError):  # the supervisor has ended, and so will this process
            send(messages.Beat())
            loop.call_later(beat_s, beat)

    beat()


class Silence:
    """For how long each front has been silent, in time in which this process was awake to hear it."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._looked_at_s = clock()
        self._silent_s: dict[int, float] = {}

    def hear(self, index: int) -> None:
        """Note a beat of a front. From the first on, more are expected."""
        self._silent_s[index] = 0.0

    def forget(self, index: int) -> None:
        """Expect no more beats of a front: it has ended."""
        self._silent_s.pop(index, None)

    def find_hung(self) -> dict[int, float]:
        """Return the fronts that have been silent for longer than the limit, and for how many seconds. Call it after
        all beats that have arrived were heard."""
        now_s = self._clock()
        passed_s, self._looked_at_s = min(now_s - self._looked_at_s, _MAX_GAP_S), now_s
        for index in self._silent_s:
            self._silent_s[index] += passed_s
        return {index: silent_s for index, silent_s in self._silent_s.items() if silent_s > self._limit_s}

"""Watches for an engine process that says nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

from seesay.engine.process.failures import HungError
from seesay.engine.process.origin import Child
from seesay.engine.process.remote.state import ProcessState
from seesay.engine.watchdog import ENGINE, Fault
from seesay.system.liveness import LIMIT_S, SUSPECT_S, Silence, is_stopped

BEAT_S = 1.0
_JOINED_S = 5.0
"""The owner of a process ends it first: another frontend that ended its connection would join the same process
again."""


def choose_beat_s(step_timeout_s: float | None) -> float:
    """Return how often a process says that it lives."""
    return BEAT_S if step_timeout_s is None else min(BEAT_S, step_timeout_s / 4)


class SilenceWatch:
    """The judge of a process that has just been started or joined."""

    def __init__(
        self,
        state: ProcessState,
        *,
        is_owner: bool,
        step_timeout_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        limit_s = LIMIT_S
        if step_timeout_s is not None:
            limit_s = min(LIMIT_S, step_timeout_s + 2 * choose_beat_s(step_timeout_s))
        self._silence = Silence(limit_s if is_owner else limit_s + _JOINED_S, clock)
        self._silence.hear()

    def hear(self) -> None:
        """Note that the process said something."""
        self._silence.hear()
        self._state.silence = None

    def find_hung(self, child: Child) -> HungError | None:
        """Report a process that does not beat. Returns why it is to be killed, if it is. One that still loads does not
        beat; it is at fault only when it was stopped."""
        if self._state.child is not child and (child.pid is None or not is_stopped(child.pid)):
            self._silence.hear()
        silent_s = self._silence.look()[0]
        if silent_s > self._silence.limit_s:
            return HungError(Fault(ENGINE, f"it has said nothing for {silent_s:.0f} s"))
        if silent_s > SUSPECT_S:
            self._state.silence = Fault(ENGINE, f"the engine process has said nothing for {silent_s:.0f} s")
        return None

"""The beats of a frontend process: its event loop sends them, and the supervisor counts for how long it has heard
none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from seesay.engine.process.link import LinkClosedError
from seesay.serving.frontends import state_messages as messages

_BEAT_S = 1.0
_BEATS_PER_LIMIT = 4


def start_beating(send: Callable[[messages.ToSupervisor], None], limit_s: float) -> None:
    """Let the running event loop send beats, several of them in `limit_s`, until it ends."""
    loop = asyncio.get_running_loop()
    beat_s = min(_BEAT_S, limit_s / _BEATS_PER_LIMIT)

    def beat() -> None:
        with contextlib.suppress(LinkClosedError):  # the supervisor has ended, and so will this process
            send(messages.Beat())
            loop.call_later(beat_s, beat)

    beat()

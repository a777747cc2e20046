"""Waiting for conditions. The limits are for tests that hang: none may depend on how fast the machine is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

TIMEOUT_S = 120.0


def wait_until(condition: Callable[[], bool], what: object = "it did not happen in time") -> None:
    """Wait until `condition()` is true. `what` is the message of the failure."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    """Wait as `wait_until` does, while the event loop goes on."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        await asyncio.sleep(0.001)

"""Since when a thread has been busy with one piece of work: what a watchdog looks at."""

from __future__ import annotations

import time


class Activity:
    """Entered by one thread with each piece of work that should end soon: a step, a call of a tower. Read by others."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def __enter__(self) -> None:
        self._since_s = time.monotonic()

    def __exit__(self, *exception: object) -> None:
        self._since_s = None

    @property
    def busy_s(self) -> float:
        """Seconds since the work began; 0 when there is none."""
        since_s = self._since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

"""The words in which a server says that it ends: at Ctrl-C where its user reads them, else in the log."""

from __future__ import annotations

import logging
import signal

logger = logging.getLogger("seesay")


def log_first_signal(number: int, drain_timeout_s: float, *, has_running: bool) -> None:
    """Log what the signal that ends a server does. has_running: whether answers are running, or may be."""
    name = signal.Signals(number).name
    if number == signal.SIGINT and has_running:
        logger.warning(
            "%s: waiting up to %g s for running answers; a second one (Ctrl-C) cuts them off", name, drain_timeout_s
        )
    else:
        logger.info("%s: waiting up to %g s for running answers", name, drain_timeout_s)

"""Sends log records to the process that started this one."""

from __future__ import annotations

import logging
from typing import Any

from seesay.engine.process import kinds
from seesay.engine.process.link import Link, LinkClosedError


class _LogSender(logging.Handler):
    """Sends log records to the parent, whose loggers decide what becomes of them."""

    def __init__(self, link: Link[Any, Any]) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._link.send(kinds.LogRecord(record.name, record.levelno, self.format(record)))
        except LinkClosedError:
            pass
        except Exception:
            self.handleError(record)


def send_logs(link: Link[Any, Any], level: int) -> None:
    """Send the records of our loggers from `level` on over `link`, instead of writing them."""
    logger = logging.getLogger("seesay")
    logger.addHandler(_LogSender(link))
    logger.setLevel(level)
    logger.propagate = False

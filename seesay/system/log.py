"""The package's loggers: `seesay` for events, `seesay.prompts` for prompts (at INFO).

Prompts are logged as text with markers. Pictures and videos are never logged.
"""

from __future__ import annotations

import logging
import sys

from seesay.errors import ConfigError

LEVELS = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG")


def stderr_descriptor() -> int | None:
    """Return the file descriptor of `sys.stderr`, for a child process to print to; None if it has none (a notebook)."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return None


class _Shorten(logging.Filter):
    """Cut the string arguments of log records to a number of characters."""

    def __init__(self) -> None:
        super().__init__()
        self.max_chars: int | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        limit = self.max_chars
        if limit is not None and isinstance(record.args, tuple):
            record.args = tuple(
                f"{arg[:limit]}… ({len(arg)} characters)" if isinstance(arg, str) and len(arg) > limit else arg
                for arg in record.args
            )
        return True


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Write to the current sys.stderr, so that redirections work."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


_shorten = _Shorten()


def set_up_logging(level: str, max_log_len: int | None = None) -> None:
    """Set the level of `seesay`'s loggers, and the number of characters of a prompt that are logged (None: all).

    Adds a handler for stderr unless the application has configured logging. Raises ConfigError for an unknown level.
    """
    name = level.upper() if isinstance(level, str) else None
    if name is None or name not in LEVELS:
        raise ConfigError(f"log_level must be one of {', '.join(LEVELS)}, got {level!r}")
    if max_log_len is not None and not (isinstance(max_log_len, int) and max_log_len >= 0):
        raise ConfigError(f"max_log_len must be at least 0 or None, got {max_log_len!r}")
    logger = logging.getLogger("seesay")
    logger.setLevel(name)
    _shorten.max_chars = max_log_len
    prompts = logging.getLogger("seesay.prompts")
    if _shorten not in prompts.filters:
        prompts.addFilter(_shorten)
    if not logger.handlers and not logging.getLogger().handlers:
        handler = _StderrHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s seesay %(levelname)s: %(message)s", "%H:%M:%S"))
        logger.addHandler(handler)

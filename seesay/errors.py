"""Every error that seesay raises on purpose. Knows nothing about HTTP.

    SeesayError
    ├── RequestError       the user's request is wrong: one request ends, its siblings go on
    ├── ConfigError        an option is wrong or not supported (also a ValueError)
    ├── CheckpointError    a model folder cannot be loaded: missing, truncated, unknown architecture
    └── MissingExtraError  an optional dependency is not installed (also an ImportError)

`assert` is for our bugs, these are for everything else.
"""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import Any


class ErrorCode(StrEnum):
    """Transport-neutral reason of a `RequestError`."""

    INVALID_REQUEST = "invalid_request"
    INVALID_MEDIA = "invalid_media"
    MEDIA_TOO_LARGE = "media_too_large"
    MEDIA_FORBIDDEN = "media_forbidden"
    MEDIA_UNREACHABLE = "media_unreachable"
    CONTEXT_TOO_LONG = "context_length_exceeded"
    OUT_OF_MEMORY = "out_of_memory"
    ABORTED = "aborted"
    CLOSED = "closed"
    INTERNAL = "internal_error"


class SeesayError(Exception):
    """Base of all errors that seesay raises on purpose."""


class RequestError(SeesayError):
    """A request that cannot be answered.

    `message` says what was wrong, where, and what to do; `param` names the argument or field at fault.
    """

    def __init__(self, code: ErrorCode, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.message, self.param)


class ConfigError(SeesayError, ValueError):
    """An option has a value that is wrong or not supported; the message names the option."""


class CheckpointError(SeesayError):
    """A model folder or hub id that cannot be loaded; the message names the file or tensor."""


class MissingExtraError(SeesayError, ImportError):
    """A feature needs a package of an extra that is not installed."""

    def __init__(self, feature: str, *, package: str, extra: str) -> None:
        super().__init__(f"{feature} needs the package {package!r}: pip install 'seesay[{extra}]'")
        self.feature = feature
        self.package = package
        self.extra = extra

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), package=self.package, extra=self.extra), (self.feature,)


def describe(error: BaseException) -> str:
    """`Type: message`, cut to 500 characters. An error may come from anywhere: where its message cannot be made, the
    type alone."""
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except Exception:
        return type(error).__name__

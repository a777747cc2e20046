"""All errors that seesay raises on purpose. They are independent of HTTP.

    SeesayError
    ├── RequestError       the user's request is wrong: only this request ends
    ├── ConfigError        an option is wrong or not supported (also a ValueError)
    ├── CheckpointError    a model folder cannot be loaded: missing, truncated, unknown architecture
    ├── StateError         the present state of a model or request does not allow the call (also a RuntimeError)
    └── MissingExtraError  an optional dependency is not installed (also an ImportError)

`assert` is for our own bugs.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import partial

from seesay.install_command import install_command


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
    SLEEPING = "sleeping"
    INTERNAL = "internal_error"


class SeesayError(Exception):
    """Base of all errors that seesay raises on purpose."""


class RequestError(SeesayError):
    """A request that cannot be answered.

    `message` says what is wrong, where, and what to do. `param` names the argument or field at fault.
    """

    def __init__(self, code: ErrorCode, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.message, self.param)


class ConfigError(SeesayError, ValueError):
    """An option has a wrong or unsupported value. The message names the option."""


class CheckpointError(SeesayError):
    """A model folder or hub id cannot be loaded. The message names the file or tensor."""


class StateError(SeesayError, RuntimeError):
    """A model or request is in a state that does not allow the call. The message says which call comes first."""


class MissingExtraError(SeesayError, ImportError):
    """A feature requires a package that is not installed. The message names the extra."""

    def __init__(self, feature: str, *, package: str, extra: str) -> None:
        super().__init__(f"{feature} requires the package {package!r}: {install_command(extra)}")
        self.feature = feature
        self.package = package
        self.extra = extra

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), package=self.package, extra=self.extra), (self.feature,)


_SHOWN_CHARS = 60


def show(value: object) -> str:
    """Return a value that a request has, for a message: short, and at once, whatever a client has put there."""
    if isinstance(value, str):
        return repr(value[:_SHOWN_CHARS])
    if isinstance(value, bool | float | None):
        return repr(value)
    if isinstance(value, int):
        return repr(value) if value.bit_length() <= 128 else "a number of many digits"
    if isinstance(value, Mapping):
        return "an object" if value else "an empty object"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    return f"a value of type {type(value).__name__}"


def describe(error: BaseException) -> str:
    """Return `Type: message`, cut to 500 characters, or only the type if `str(error)` fails."""
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except Exception:
        return type(error).__name__

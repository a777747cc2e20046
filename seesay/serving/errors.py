"""HTTP errors: one table from `ErrorCode` to status and type, and an envelope per API.

An `ApiError` may be raised anywhere while a request is handled, also in middleware.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from starlette.exceptions import HTTPException

from seesay.errors import ErrorCode, RequestError, show

# HTTP status and error type of each `ErrorCode`. Everything that the client can correct is 400.
_TABLE: Mapping[ErrorCode, tuple[int, str]] = {
    ErrorCode.INVALID_REQUEST: (400, "invalid_request_error"),
    ErrorCode.INVALID_MEDIA: (400, "invalid_request_error"),
    ErrorCode.MEDIA_TOO_LARGE: (400, "invalid_request_error"),
    ErrorCode.MEDIA_FORBIDDEN: (400, "invalid_request_error"),
    ErrorCode.MEDIA_UNREACHABLE: (400, "invalid_request_error"),
    ErrorCode.CONTEXT_TOO_LONG: (400, "invalid_request_error"),
    ErrorCode.OUT_OF_MEMORY: (503, "server_error"),
    ErrorCode.ABORTED: (503, "server_error"),
    ErrorCode.CLOSED: (503, "server_error"),
    ErrorCode.SLEEPING: (503, "server_error"),
    ErrorCode.INTERNAL: (500, "server_error"),
}
_RETRY_AFTER_S = 5.0
_MAX_MESSAGE_CHARS, _MAX_PARAM_CHARS = 4000, 400  # what a client sent may be named, and not all sent back


class ApiError(HTTPException):
    """An error answer.

    status: the HTTP status. kind: OpenAI's `type`. code: short reason for programs. param: the field at fault.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        message = message[:_MAX_MESSAGE_CHARS]
        self.message = message
        self.kind = kind
        self.code = code
        self.param = None if param is None else param[:_MAX_PARAM_CHARS]
        all_headers = dict(headers or {})
        if retry_after_s is not None:
            all_headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
        super().__init__(status, message, all_headers)

    @classmethod
    def from_error(cls, error: Exception, *, request_id: str | None = None) -> ApiError:
        """Turn any exception into an `ApiError`. An internal error names `request_id`, to look it up in the log."""
        if isinstance(error, ApiError):
            return error
        code = error.code if isinstance(error, RequestError) else ErrorCode.INTERNAL
        status, kind = _TABLE[code]
        message = error.message if isinstance(error, RequestError) else "the server failed on this request"
        if status == 500 and request_id is not None:
            message = f"{message} (details are in the server's log, under {request_id})"
        return cls(
            status,
            message,
            kind=kind,
            code=code.value,
            param=error.param if isinstance(error, RequestError) else None,
            retry_after_s=_RETRY_AFTER_S if status == 503 else None,
        )


def bad_request(message: str, param: str | None = None, *, code: str | None = "invalid_request") -> ApiError:
    """Return a 400 error for the field `param`."""
    return ApiError(400, message, param=param, code=code)


def requires(name: str, other: str, given: object) -> ApiError:
    """Return a 400 error for the field `name` (or `name=value`), which is allowed only where the field `other` is true.
    `given` is what that is instead, None if nothing."""
    got = "which the request does not have" if given is None else f"got {show(given)}"
    return bad_request(f"{name} requires {other}=true, {got}", name.partition("=")[0])


Envelope = Callable[[ApiError], dict[str, Any]]


def openai_envelope(error: ApiError) -> dict[str, Any]:
    """Return OpenAI's body of an error: `{"error": {"message", "type", "param", "code"}}`."""
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


class Envelopes:
    """Map paths to the error format of their API. The default is OpenAI's."""

    def __init__(self) -> None:
        self._registered: list[tuple[str, bytes | None, Envelope]] = []

    def register(self, prefix: str, envelope: Envelope, *, header: str | None = None) -> None:
        """Use `envelope` for paths that are `prefix` or below it. With `header`, only for requests that have it."""
        self._registered.append((prefix, None if header is None else header.encode(), envelope))

    def wrap(self, path: str, headers: Iterable[tuple[bytes, bytes]], error: ApiError) -> dict[str, Any]:
        """Return the body of `error` for a request with this path and these headers."""
        names = {name for name, _ in headers}
        for prefix, header, envelope in self._registered:
            if (path == prefix or path.startswith(prefix + "/")) and (header is None or header in names):
                return envelope(error)
        return openai_envelope(error)

"""Errors as clients see them: one table from `ErrorCode` to HTTP, and an envelope per API.

An `ApiError` may be raised anywhere while a request is handled, middleware included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from starlette.exceptions import HTTPException

from seesay.errors import ErrorCode, RequestError

# What each reason is over HTTP: (status, type). Everything that is the client's to change is 400.
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
    ErrorCode.INTERNAL: (500, "server_error"),
}
_RETRY_AFTER_S = 5.0
# What parts of the engine call the prompt of a request.
_PROMPTS = ("messages", "prompts", "input_ids")


class ApiError(HTTPException):
    """An answer that is an error.

    status: of HTTP. kind: OpenAI's `type`. code: short reason for programs. param: the field at fault.
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
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param
        all_headers = dict(headers or {})
        if retry_after_s is not None:
            all_headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
        super().__init__(status, message, all_headers)

    @classmethod
    def from_error(cls, error: Exception, *, request_id: str | None = None) -> ApiError:
        """Whatever ended a request. What is our fault names `request_id`, under which the log has more."""
        if isinstance(error, ApiError):
            return error
        code = error.code if isinstance(error, RequestError) else ErrorCode.INTERNAL
        status, kind = _TABLE[code]
        message = error.message if isinstance(error, RequestError) else "the server failed on this request"
        if status == 500 and request_id is not None:
            message = f"{message} (the server's log has more about {request_id})"
        return cls(
            status,
            message,
            kind=kind,
            code=code.value,
            param=error.param if isinstance(error, RequestError) else None,
            retry_after_s=_RETRY_AFTER_S if status == 503 else None,
        )


def name_prompt(error: ApiError, field: str) -> ApiError:
    """Return `error` with the API's own field in place of what the engine calls a prompt; of one prompt among several
    (`field` has an index), the message names it, too."""
    if error.param in _PROMPTS:
        error.param = field
        if "[" in field:
            error.detail = error.message = f"{field}: {error.message}"
    return error


def bad_request(message: str, param: str | None = None, *, code: str | None = "invalid_request") -> ApiError:
    """400 for the field `param`."""
    return ApiError(400, message, param=param, code=code)


Envelope = Callable[[ApiError], dict[str, Any]]


def openai_envelope(error: ApiError) -> dict[str, Any]:
    """`{"error": {"message", "type", "param", "code"}}`."""
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


class Envelopes:
    """Which shape errors have under which path; OpenAI's where nothing else was said."""

    def __init__(self) -> None:
        self._registered: list[tuple[str, bytes | None, Envelope]] = []

    def register(self, prefix: str, envelope: Envelope, *, header: str | None = None) -> None:
        """Give errors of paths that are `prefix` or below it this shape; with `header`, if the request has it."""
        self._registered.append((prefix, None if header is None else header.encode(), envelope))

    def wrap(self, path: str, headers: Iterable[tuple[bytes, bytes]], error: ApiError) -> dict[str, Any]:
        """Return the body that `error` has, as answer to a request with this path and these headers."""
        names = {name for name, _ in headers}
        for prefix, header, envelope in self._registered:
            if (path == prefix or path.startswith(prefix + "/")) and (header is None or header in names):
                return envelope(error)
        return openai_envelope(error)

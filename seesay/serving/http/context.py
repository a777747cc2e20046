"""The outermost middleware: gives each request an id, logs and counts it, and turns exceptions into error answers."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Iterable
from typing import Protocol

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seesay.processors.media.library_messages import request_id as media_request_id
from seesay.serving.errors import ApiError, Envelopes
from seesay.serving.requests.left_out import HEADER as LEFT_OUT_HEADER
from seesay.serving.requests.left_out import end_wait, show_left_out
from seesay.serving.requests.submission import ClientGoneError
from seesay.serving.requests.unknown_fields import HEADER as IGNORED_HEADER
from seesay.serving.requests.unknown_fields import list_names
from seesay.serving.tracing import Tracing

logger = logging.getLogger("seesay.access")

_GIVEN_ID = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_OPENING = {"websocket.accept": 101, "websocket.close": 403, "websocket.http.response.start": 0}
"""The messages that answer the opening of a WebSocket, and their status."""
_CLIENT_CLOSED = 499  # nginx's status for a client that left; appears in logs and metrics only


def request_id_of(scope: Scope) -> str:
    """Return the id of an HTTP request. The answer carries it as `x-request-id`."""
    request_id: str = scope["state"]["request_id"]
    return request_id


class HttpMetrics(Protocol):
    """Counts HTTP requests."""

    def observe_http(self, endpoint: str, status: int, elapsed_s: float, /) -> None: ...

    def observe_ignored(self, endpoint: str, num_fields: int, /) -> None: ...


class ContextMiddleware:
    """Give each request an id (the client's `x-request-id` if it is short and plain), and turn exceptions into errors
    in the envelope of the path. An exception that is not an `ApiError` is a bug, and is logged with the id."""

    def __init__(
        self, app: ASGIApp, *, envelopes: Envelopes, metrics: HttpMetrics, tracing: Tracing | None = None
    ) -> None:
        self._app = app
        self._tracing = tracing
        self._envelopes = envelopes
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        request_id = choose_id(scope["headers"])
        scope.setdefault("state", {})["request_id"] = request_id
        media_request_id.set(request_id)
        if scope["type"] == "websocket":
            await self._serve_socket(scope, receive, send)
            return
        started_at = time.perf_counter()
        trace = None if self._tracing is None else self._tracing.begin(scope)
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # OpenAI's clients read x-request-id, Anthropic's request-id.
                ids = [(name, request_id.encode()) for name in (b"x-request-id", b"request-id")]
                if ignored := scope["state"].get("ignored_fields"):
                    ids.append((IGNORED_HEADER.encode(), list_names(ignored).encode()))
                if left_out := scope["state"].get("schema_left_out"):
                    ids.append((LEFT_OUT_HEADER.encode(), show_left_out(left_out).encode()))
                message["headers"] = [*message.get("headers", ()), *ids]
            await send(message)

        try:
            await self._app(scope, receive if trace is None else trace.watch(receive), send_with_id)
        except ClientGoneError:
            status = _CLIENT_CLOSED
        except Exception as error:
            if _is_fault(error):
                logger.exception("%s failed: %s %s", request_id, scope["method"], scope["path"])
            if status:
                raise  # the answer has begun: the server closes the connection, which tells the client
            response = make_error_response(scope, error, self._envelopes)
            await response(scope, receive, send_with_id)
        finally:
            end_wait(scope)
            elapsed_s = time.perf_counter() - started_at
            self._metrics.observe_http(_endpoint_of(scope), status, elapsed_s)
            self._metrics.observe_ignored(_endpoint_of(scope), len(scope["state"].get("ignored_fields", ())))
            if trace is not None:
                trace.end(scope, status)
            logger.info("%s %s %s %d %.3f s", request_id, scope["method"], scope["path"], status, elapsed_s)

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket. What is counted is how it was opened: it stays open for as long as its client likes."""
        request_id, opened_at = request_id_of(scope), time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if not status and message["type"] in _OPENING:
                status = message.get("status", _OPENING[message["type"]])
                self._metrics.observe_http(_endpoint_of(scope), status, time.perf_counter() - opened_at)
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            if _is_fault(error):
                logger.exception("%s failed: WebSocket %s", request_id, scope["path"])
            if not status:
                await make_error_response(scope, error, self._envelopes)(scope, receive, send_with_id)
        finally:
            logger.info("%s WebSocket %s %d %.3f s", request_id, scope["path"], status, time.perf_counter() - opened_at)


def _is_fault(error: Exception) -> bool:
    """Return whether the server is to blame for an error, and does not know it yet."""
    return not isinstance(error, ApiError) and ApiError.from_error(error).status_code >= 500


def make_error_response(scope: Scope, error: Exception, envelopes: Envelopes) -> JSONResponse:
    """Return `error` as a response, in the envelope of the request's path."""
    api_error = ApiError.from_error(error, request_id=request_id_of(scope))
    body = envelopes.wrap(scope["path"], scope["headers"], api_error)
    return JSONResponse(body, status_code=api_error.status_code, headers=api_error.headers)


def choose_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the id of a request with these headers: the client's if it is short and plain, or a new one."""
    for name, value in headers:
        if name == b"x-request-id" and _GIVEN_ID.fullmatch(value.decode("latin-1")):
            return str(value.decode("latin-1"))
    return f"req_{secrets.token_hex(12)}"


def _endpoint_of(scope: Scope) -> str:
    """Return the path of the route, not of the request: a client must not be able to create metric labels."""
    return getattr(scope.get("route"), "path", None) or "other"

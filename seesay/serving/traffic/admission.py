"""Admission control: limits on the size and duration of request bodies, and on the number of requests."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from seesay.errors import show
from seesay.serving.errors import ApiError
from seesay.serving.settings import ServerSettings
from seesay.serving.traffic.auth import turn_of

_RETRY_AFTER_S = 1.0
_UPLOADS = "/v1/files"
_WITHOUT_BODY = ("GET", "HEAD", "OPTIONS")
_FORM_BYTES = 16 << 10  # of a form beside its file
REQUESTS_PER_TURN = 4
"""Reading and checking one takes a millisecond or two."""


class Gate:
    """Count the requests inside the server, the bytes of their bodies, and live sessions, which last longer than
    requests and hold frames. Refuse new ones above the limits.

    Thread-safe: the event loops of several threads may share it. A client that uses less than an equal share is still
    admitted when other clients have filled the queue, up to twice the limits in total.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.max_inside = settings.max_concurrent_requests + settings.max_queue
        self.max_bytes = settings.max_total_body_bytes
        self.max_sessions = settings.max_live_sessions
        self._lock = threading.Lock()
        self._requests: Counter[Hashable] = Counter()  # requests inside, by turn (`auth.turn_of`)
        self._bytes: Counter[Hashable] = Counter()  # bytes of their bodies, by turn
        self._sessions: Counter[Hashable] = Counter()  # live sessions, by turn
        self.is_draining = False

    @property
    def num_inside(self) -> int:
        """Number of HTTP requests and live sessions inside."""
        with self._lock:
            return self._requests.total() + self._sessions.total()

    @property
    def num_sessions(self) -> int:
        """Number of live sessions."""
        with self._lock:
            return self._sessions.total()

    @property
    def num_bytes(self) -> int:
        """Bytes of the bodies of all requests inside."""
        with self._lock:
            return self._bytes.total()

    def enter(self, turn: Hashable) -> None:
        """Count one more request inside. Raises `ApiError` when the queue is full or the server shuts down."""
        if self.is_draining:
            raise shutting_down()
        with self._lock:
            if not _has_room(self._requests, turn, 1, self.max_inside):
                raise _queue_full(f"{self._requests.total()} requests are running or waiting")
            self._requests[turn] += 1

    def take_bytes(self, turn: Hashable, num_bytes: int) -> None:
        """Count more bytes of a body. Raises `ApiError` when all bodies together exceed `max_bytes`."""
        with self._lock:
            if not _has_room(self._bytes, turn, num_bytes, self.max_bytes):
                raise _queue_full(f"running and waiting requests have more than {self.max_bytes} bytes together")
            self._bytes[turn] += num_bytes

    def leave(self, turn: Hashable, num_bytes: int) -> None:
        """Take back one request, and the bytes of its body."""
        self._give_back(turn, (self._requests, 1), (self._bytes, num_bytes))

    def give_back_bytes(self, turn: Hashable, num_bytes: int) -> None:
        """Take back bytes of `take_bytes`."""
        self._give_back(turn, (self._bytes, num_bytes))

    def enter_session(self, turn: Hashable) -> None:
        """Count one more live session. Raises `ApiError` when there are too many or the server shuts down."""
        if self.is_draining:
            raise shutting_down()
        if not self.max_sessions:
            message = "this server takes no live video (max_live_sessions=0)"
            raise ApiError(403, message, kind="permission_error", code="live_video_off")
        with self._lock:
            if not _has_room(self._sessions, turn, 1, self.max_sessions):
                message = f"{self._sessions.total()} live sessions are open; try again later (max_live_sessions)"
                raise ApiError(
                    429, message, kind="rate_limit_error", code="too_many_sessions", retry_after_s=_RETRY_AFTER_S
                )
            self._sessions[turn] += 1

    def leave_session(self, turn: Hashable) -> None:
        """Take back one live session."""
        self._give_back(turn, (self._sessions, 1))

    def _give_back(self, turn: Hashable, *taken: tuple[Counter[Hashable], int]) -> None:
        with self._lock:
            for counts, number in taken:
                counts[turn] -= number
                if not counts[turn]:
                    del counts[turn]


def _has_room(used: Counter[Hashable], turn: Hashable, wanted: int, limit: int) -> bool:
    total = used.total() + wanted
    if total <= limit:
        return True
    num_clients = len(used) + (turn not in used)
    return total <= 2 * limit and used[turn] + wanted <= limit // num_clients


def _queue_full(why: str) -> ApiError:
    return ApiError(
        429,
        f"the queue is full: {why}; try again later",
        kind="rate_limit_error",
        code="queue_full",
        retry_after_s=_RETRY_AFTER_S,
    )


def shutting_down() -> ApiError:
    """Return the error (503) for requests that arrive, or still run, while the server shuts down."""
    return ApiError(
        503, "the server is shutting down; try again later", kind="server_error", code="shutting_down", retry_after_s=5
    )


class Turnstile:
    """Let `REQUESTS_PER_TURN` requests pass in each turn of an event loop. When hundreds arrive in one moment, the
    streams of others are written between them."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._num_passed = 0  # in this turn
        self._is_scheduled = False

    async def wait(self) -> None:
        """Return when the request may pass. First come, first served."""
        loop = asyncio.get_running_loop()
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._begin_turn, loop)
        if self._num_passed < REQUESTS_PER_TURN and not self._waiting:
            self._num_passed += 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _begin_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._num_passed = 0
        while self._waiting and self._num_passed < REQUESTS_PER_TURN:
            turn = self._waiting.popleft()
            if not turn.done():  # its task was cancelled
                turn.set_result(None)
                self._num_passed += 1
        self._is_scheduled = bool(self._num_passed)
        if self._is_scheduled:
            loop.call_soon(self._begin_turn, loop)


class AdmissionMiddleware:
    """Pass requests that may have a body through `gate`, a few at a time, and limit their bodies as `settings` say."""

    def __init__(self, app: ASGIApp, *, gate: Gate, settings: ServerSettings) -> None:
        self._app = app
        self._gate = gate
        self._of_bodies = _SizeLimit(settings.max_body_bytes, "max_body_bytes): send smaller pictures, or their URLs")
        self._of_files = _SizeLimit(settings.max_file_bytes + _FORM_BYTES, "max_file_bytes): divide the file")
        self._timeout_s = settings.body_timeout_s
        self._turnstiles: WeakKeyDictionary[asyncio.AbstractEventLoop, Turnstile] = WeakKeyDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _WITHOUT_BODY:
            await self._app(scope, receive, send)
            return
        limit = self._of_files if scope["path"] == _UPLOADS else self._of_bodies
        _check_announced(scope, limit)
        turn = turn_of(scope)
        self._gate.enter(turn)
        take_bytes = partial(self._gate.take_bytes, turn)
        body = _BoundedBody(receive, take_bytes, limit=limit, timeout_s=self._timeout_s)
        try:
            await self._turnstiles.setdefault(asyncio.get_running_loop(), Turnstile()).wait()
            await self._app(scope, body.receive, send)
        finally:
            self._gate.leave(turn, body.num_bytes)


class _SizeLimit(NamedTuple):
    """The largest body; which option it is, and what to do."""

    max_bytes: int
    advice: str


def _check_announced(scope: Scope, limit: _SizeLimit) -> None:
    """Refuse a body whose `Content-Length` is too large, or which is encoded, before it is read."""
    for name, value in scope["headers"]:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise _refuse_coding(415, "Content-Encoding", value, "send the body as it is", "unsupported_encoding")
        if name == b"transfer-encoding" and value.strip().lower() not in (b"", b"identity", b"chunked"):
            raise _refuse_coding(501, "Transfer-Encoding", value, "only chunked is", "unsupported_coding")
        if name == b"content-length" and value.isdigit() and int(value) > limit.max_bytes:
            raise _too_large(limit)


class _BoundedBody:
    """Wrap `receive`: raise `ApiError` for a body that is too large or arrives too slowly."""

    def __init__(
        self, receive: Receive, take_bytes: Callable[[int], None], *, limit: _SizeLimit, timeout_s: float
    ) -> None:
        self.num_bytes = 0
        self._receive = receive
        self._take_bytes = take_bytes
        self._limit = limit
        self._timeout_s = timeout_s
        self._deadline = asyncio.get_running_loop().time() + timeout_s
        self._is_complete = False

    async def receive(self) -> Message:
        if self._is_complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(
                408,
                f"the body did not arrive within {self._timeout_s:g} s",
                code="body_timeout",
                headers={"Connection": "close"},
            ) from None
        if message["type"] == "http.request":
            num_new = len(message.get("body", b""))
            if self.num_bytes + num_new > self._limit.max_bytes:
                raise _too_large(self._limit)
            self._take_bytes(num_new)
            self.num_bytes += num_new
            self._is_complete = not message.get("more_body", False)
        return message


def _refuse_coding(status: int, header: str, value: bytes, advice: str, code: str) -> ApiError:
    shown = show(value.decode("latin-1"))
    message = f"{header}: {shown} is not supported: {advice}"
    return ApiError(status, message, code=code, headers={"Connection": "close"})  # the body is not read


def _too_large(limit: _SizeLimit) -> ApiError:
    return ApiError(
        413,
        f"the body is larger than {limit.max_bytes} bytes ({limit.advice}",
        code="body_too_large",
        headers={"Connection": "close"},  # the rest of the body is not read
    )

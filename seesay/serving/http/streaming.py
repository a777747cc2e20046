"""Streamed answers: server-sent events, and lines of JSON.

Nothing is sent before the first event exists, the request waits for its turn alone, or a second has passed: an error
that is found until then becomes an HTTP error and not an event. A request that waits longer gets the headers, and a
comment whenever nothing was sent for ten seconds, so that neither its client nor a proxy gives up. One whose client
has shut its side down gets a comment at once, which a closed connection answers with a reset.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from seesay.serving.errors import ApiError
from seesay.serving.requests.caller import is_queued
from seesay.serving.requests.submission import unless_gone

_NAMED_EVENTS = ("/v1/messages", "/v1/responses")
_COMMENT = b": keep-alive\n\n"
_HEADERS = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx must not buffer events
]


class LastEvents(bytes):
    """The bytes that end a stream. They are sent together with the end of the answer."""


class EventStream(Response):
    """Send the bytes of `events` as they come, until `LastEvents` or the end. When the client disconnects, close
    `events`.

    An `ApiError` before anything was sent is raised and becomes the HTTP answer. A later one is sent as
    `render_error(error)` and ends the stream.
    """

    content_type = b"text/event-stream; charset=utf-8"
    comment = _COMMENT
    headers_after_s, keep_alive_s = 1.0, 10.0
    first_look_s = 0.05
    """When it is looked first whether a request waits for its turn; then each time after twice as long."""

    def __init__(self, events: AsyncGenerator[bytes, None], *, render_error: Callable[[ApiError], bytes]) -> None:
        self.status_code, self.background = 200, None  # there is no content yet, which `super().__init__` would render
        self._events = events
        self._render_error = render_error
        self._sent_at = 0.0  # 0: nothing yet
        self._is_due = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        scope.setdefault("state", {})["send_comment"] = self._is_due.set
        waiting = asyncio.create_task(self._keep_alive(scope, send))
        try:
            await unless_gone(receive, self._send_all(send))
        finally:
            waiting.cancel()

    async def _start(self, send: Send) -> None:
        is_first, self._sent_at = not self._sent_at, time.monotonic()
        if is_first:
            headers = [(b"content-type", self.content_type), *_HEADERS]
            await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _keep_alive(self, scope: Scope, send: Send) -> None:
        """Send the headers if nothing else begins the answer, and comments while nothing is sent."""
        pause_s, left_s = self.first_look_s, self.headers_after_s
        while left_s > 0 and not is_queued(scope):
            await asyncio.sleep(min(pause_s, left_s))
            left_s -= pause_s
            pause_s *= 2
        if not self._sent_at:
            await self._start(send)
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(
                    self._is_due.wait(), max(0.01, self._sent_at + self.keep_alive_s - time.monotonic())
                )
            is_due = self._is_due.is_set() or time.monotonic() >= self._sent_at + self.keep_alive_s
            self._is_due.clear()
            if self.comment and is_due and self._sent_at < math.inf:
                self._sent_at = time.monotonic()
                await send({"type": "http.response.body", "body": self.comment, "more_body": True})

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            try:
                async for event in events:
                    await self._start(send)
                    is_last = isinstance(event, LastEvents)
                    if is_last:
                        self._sent_at = math.inf
                    await send({"type": "http.response.body", "body": event, "more_body": not is_last})
                    if is_last:
                        return
            except asyncio.CancelledError:
                raise
            except Exception as error:
                if not self._sent_at:
                    raise
                # The status has been sent, so the error goes into the stream.
                await send(
                    {"type": "http.response.body", "body": self._render_error(_as_api_error(error)), "more_body": True}
                )
        if not self._sent_at:  # there were no events
            await self._start(send)
        self._sent_at = math.inf
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class LineStream(EventStream):
    """A stream of lines of JSON (NDJSON), which has no comments."""

    content_type = b"application/x-ndjson"
    comment = b""


def _as_api_error(error: Exception) -> ApiError:
    return error if isinstance(error, ApiError) else ApiError.from_error(error)


_encoder = json.JSONEncoder(separators=(",", ":"))


def encode_json(value: object) -> str:
    """Return compact ASCII JSON. Some clients split lines at U+2028 or U+0085, so these must not appear in an event."""
    return _encoder.encode(value)


def describe_events(model: str) -> dict[str, Any]:
    """Return the OpenAPI description of a stream whose events hold JSON of the schema named `model`."""
    data = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"$ref": f"#/components/schemas/{model}"},
    }
    event = {"type": "object", "properties": {"event": {"type": "string"}, "data": data}, "required": ["data"]}
    return {"text/event-stream": {"schema": event}}


def make_event(data: Mapping[str, object] | str, *, name: str | None = None) -> bytes:
    """Return one event. `data` is JSON as a string, or an object to encode."""
    text = data if isinstance(data, str) else encode_json(data)
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {text}\n\n".encode()


def make_last_event(error: Mapping[str, object], *, content_type: str, path: str, tail: bytes) -> bytes | None:
    """Return the body of an error as the last event of an answer that ends with `tail` so far; None where it cannot
    stand there."""
    if content_type == "text/event-stream" and tail in (b"", b"\n\n"):
        return make_event(error, name="error" if path.startswith(_NAMED_EVENTS) else None)
    if content_type == "application/x-ndjson" and tail[-1:] in (b"", b"\n"):
        return encode_json(error).encode() + b"\n"
    return None

"""Server-sent events. Nothing is sent before the first event exists, so that an error in the request becomes an HTTP
error and not an event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from seesay.serving.errors import ApiError
from seesay.serving.requests.submission import unless_gone

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx must not buffer events
]


class LastEvents(bytes):
    """The bytes that end a stream. They are sent together with the end of the answer."""


class EventStream(Response):
    """Send the bytes of `events` as they come, until `LastEvents` or the end. When the client disconnects, close
    `events`.

    An `ApiError` before the first event is raised and becomes the HTTP answer. A later one is sent as
    `render_error(error)` and ends the stream.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], *, render_error: Callable[[ApiError], bytes]) -> None:
        self.status_code, self.background = 200, None  # there is no content yet, which `super().__init__` would render
        self._events = events
        self._render_error = render_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        await unless_gone(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        has_started = False
        async with aclosing(self._events) as events:
            try:
                async for event in events:
                    if not has_started:
                        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                        has_started = True
                    is_last = isinstance(event, LastEvents)
                    await send({"type": "http.response.body", "body": event, "more_body": not is_last})
                    if is_last:
                        return
            except asyncio.CancelledError:
                raise
            except Exception as error:
                if not has_started:
                    raise
                # The status has been sent, so the error goes into the stream.
                await send(
                    {"type": "http.response.body", "body": self._render_error(_as_api_error(error)), "more_body": True}
                )
        await send({"type": "http.response.body", "body": b"", "more_body": False})


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
    return {"text/event-stream": {"itemSchema": event}}


def make_event(data: Mapping[str, object] | str, *, name: str | None = None) -> bytes:
    """Return one event. `data` is JSON as a string, or an object to encode."""
    text = data if isinstance(data, str) else encode_json(data)
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {text}\n\n".encode()

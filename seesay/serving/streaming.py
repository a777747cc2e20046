"""Server-sent events, written as they are made. Nothing is sent before the first event exists, so that whatever is
wrong with a request is an HTTP error, not an event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from seesay.serving.answers import unless_gone
from seesay.serving.errors import ApiError

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies pass each event on at once
]


class EventStream(Response):
    """Sends the bytes of `events` as they come; a client that leaves closes `events`.

    An `ApiError` before the first event is raised, and becomes the HTTP answer; a later one is sent as
    `render_error(error)`, after which the stream ends.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], *, render_error: Callable[[ApiError], bytes]) -> None:
        super().__init__()
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
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            except asyncio.CancelledError:
                raise
            except Exception as error:
                if not has_started:
                    raise
                # The status is out already: the stream says it, and ends.
                await send(
                    {"type": "http.response.body", "body": self._render_error(_as_api_error(error)), "more_body": True}
                )
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _as_api_error(error: Exception) -> ApiError:
    return error if isinstance(error, ApiError) else ApiError.from_error(error)


def encode_json(value: Any) -> str:
    """Compact JSON in ASCII: clients that split lines at U+2028 or U+0085 must not find these in an event."""
    return json.dumps(value, separators=(",", ":"))


def describe_events(model: str) -> dict[str, Any]:
    """How an OpenAPI document says that a stream's events hold JSON of `model`, the name of a schema in it."""
    data = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"$ref": f"#/components/schemas/{model}"},
    }
    event = {"type": "object", "properties": {"event": {"type": "string"}, "data": data}, "required": ["data"]}
    return {"text/event-stream": {"itemSchema": event}}


def make_event(data: Mapping[str, Any] | str, *, name: str | None = None) -> bytes:
    """One event; `data` is JSON already, or becomes it."""
    text = data if isinstance(data, str) else encode_json(data)
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {text}\n\n".encode()

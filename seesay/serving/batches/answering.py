"""Answers the lines of a batch: by the routes of an app in this process, or by a server elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Hashable
from typing import TYPE_CHECKING

from starlette.types import Message

from seesay.serving.batches.lines import BatchLine
from seesay.serving.batches.results import Answered

if TYPE_CHECKING:
    import httpx
    from fastapi import FastAPI

_PASSING = frozenset([408, 429, 502, 503, 504])  # statuses of a server that may answer later
_MAX_ATTEMPTS = 6
_MAX_PAUSE_S = 30.0
REQUEST_ID = "x-request-id"


class AppAnswering:
    """Passes lines to the routes of an app in this process, behind its checks of keys and of the length of the queue.

    app: of `create_app`. owner: the digest of the key that responses are stored for. turn: whose turn a line takes.
    """

    def __init__(self, app: FastAPI, *, owner: bytes = b"", turn: Hashable = "batch") -> None:
        self._app = app
        self._state = {"owner": owner, "has_admins": True, "is_admin": False, "turn": turn}

    async def __call__(self, line: BatchLine) -> Answered:
        """Return the app's answer."""
        scope = {
            "type": "http",
            "app": self._app,
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": line.url,
            "raw_path": line.url.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "server": ("batch", None),
            "client": None,
            "state": dict(self._state),
        }
        exchange = _Exchange(line.body)
        await self._app.state.checked_app(scope, exchange.receive, exchange.send)
        return exchange.answered()


class _Exchange:
    """The two halves of a request in this process."""

    def __init__(self, body: bytes) -> None:
        self._request: bytes | None = body
        self._status = 0
        self._request_id = ""
        self._body = bytearray()

    async def receive(self) -> Message:
        if self._request is None:
            await asyncio.get_running_loop().create_future()  # the client stays until it has its answer
        body, self._request = self._request, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._request_id = dict(message["headers"]).get(REQUEST_ID.encode(), b"").decode("latin-1")
        else:
            self._body += message.get("body", b"")

    def answered(self) -> Answered:
        return Answered(status_code=self._status, request_id=self._request_id, body=bytes(self._body))


class ServerAnswering:
    """Passes lines to an OpenAI-compatible server. A line is sent again when the server is busy or out of reach."""

    def __init__(self, client: httpx.AsyncClient, base_url: str, *, first_pause_s: float = 1.0) -> None:
        """base_url: the server's address, with or without `/v1`. first_pause_s: before the second attempt; later pauses
        are longer."""
        self._client = client
        self._address = base_url.rstrip("/").removesuffix("/v1")
        self._first_pause_s = first_pause_s

    async def __call__(self, line: BatchLine) -> Answered:
        """Return the server's answer, or 502 for a server that was out of reach at every attempt."""
        import httpx

        for attempt in range(_MAX_ATTEMPTS):
            pause_s = min(_MAX_PAUSE_S, self._first_pause_s * 2**attempt)
            try:
                response = await self._client.post(
                    self._address + line.url, content=line.body, headers={"content-type": "application/json"}
                )
            except httpx.TransportError as error:
                answered = _out_of_reach(error)
            else:
                request_id = response.headers.get(REQUEST_ID, "")
                answered = Answered(status_code=response.status_code, request_id=request_id, body=response.content)
                pause_s = _read_pause(response.headers.get("retry-after"), pause_s)
            if answered.status_code not in _PASSING or attempt == _MAX_ATTEMPTS - 1:
                break
            await asyncio.sleep(pause_s)
        return answered


def _read_pause(header: str | None, pause_s: float) -> float:
    """Return how long to wait: as long as the server says, where that is longer, but not forever."""
    if header is None or not header.isdecimal():
        return pause_s
    return min(_MAX_PAUSE_S, max(pause_s, float(header)))


def _out_of_reach(error: Exception) -> Answered:
    message = f"the server cannot be reached: {error or type(error).__name__}"
    body = {"error": {"message": message, "type": "server_error", "param": None, "code": "unreachable"}}
    return Answered(status_code=502, request_id="", body=json.dumps(body).encode())

"""The camera of the page: a WebSocket that passes frames, questions and answers between the browser and the server's
`/v1/live`, with the visitor's key, which the browser does not have."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.websockets import WebSocket, WebSocketDisconnect

from seesay.ui.answering import Answerer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send
    from websockets.asyncio.client import ClientConnection

    from seesay.serving.client import LiveAddress

PATH = "/seesay-live"
PANEL = (Path(__file__).parent / "live.html").read_text()
STYLE_FILE = Path(__file__).parent / "live.css"

_OPEN_TIMEOUT_S = 15.0
_MAX_MESSAGE_BYTES = 1 << 20
_log = logging.getLogger("seesay.ui")


class LiveMiddleware:
    """ASGI middleware that serves the WebSocket of the page at `PATH`. find_client: returns the server as a visitor
    with these cookies may use it."""

    def __init__(self, app: ASGIApp, find_client: Callable[[Mapping[str, str]], Answerer | None]) -> None:
        self._app = app
        self._find_client = find_client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope.get("path", "")).removeprefix(str(scope.get("root_path", "")))
        if scope["type"] != "websocket" or path != PATH:
            await self._app(scope, receive, send)
            return
        client = self._find_client(Request({**scope, "type": "http"}).cookies)
        browser = WebSocket(scope, receive, send)
        address = None if client is None else client.live_address()
        if address is None or not _is_own_page(browser):
            await browser.close(1008)
            return
        await browser.accept()
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # it left while it was told something
            await _relay(browser, address)


def _is_own_page(browser: WebSocket) -> bool:
    """Return whether the page that opens the WebSocket is ours. The policy has checked our own name."""
    origin, host = browser.headers.get("origin", ""), browser.headers.get("host", "")
    return origin.partition("://")[2].lower() == host.lower()


async def _relay(browser: WebSocket, address: LiveAddress) -> None:
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidHandshake, InvalidStatus

    try:
        async with connect(
            address.url,
            additional_headers=address.headers,
            open_timeout=_OPEN_TIMEOUT_S,
            max_size=_MAX_MESSAGE_BYTES,
            compression=None,
            proxy=None,
        ) as server:
            await _pass_both_ways(browser, server)
            code, reason = server.close_code or 1000, server.close_reason or ""
    except InvalidStatus as error:
        await _tell(browser, _read_error(error.response.body, error.response.status_code))
        code, reason = 1011, "the server refused"
    except (OSError, TimeoutError, InvalidHandshake) as error:
        _log.info("no live session: %s", error)
        await _tell(browser, "The server cannot be reached.")
        code, reason = 1011, "the server cannot be reached"
    # 1005 and 1006 say that there was no code, and must not be sent.
    await browser.close(code if 1000 <= code < 1005 or code >= 1007 else 1011, reason)


async def _pass_both_ways(browser: WebSocket, server: ClientConnection) -> None:
    """Return when one side has closed."""
    up, down = asyncio.create_task(_pass_up(browser, server)), asyncio.create_task(_pass_down(browser, server))
    try:
        await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
    finally:
        up.cancel()
        down.cancel()
        await asyncio.gather(up, down, return_exceptions=True)


async def _pass_up(browser: WebSocket, server: ClientConnection) -> None:
    from websockets.exceptions import ConnectionClosed

    with contextlib.suppress(ConnectionClosed):
        while (message := await browser.receive())["type"] != "websocket.disconnect":
            content: Any = message.get("text")
            await server.send(message["bytes"] if content is None else content)


async def _pass_down(browser: WebSocket, server: ClientConnection) -> None:
    async for message in server:
        await browser.send_text(message if isinstance(message, str) else message.decode())


async def _tell(browser: WebSocket, message: str) -> None:
    await browser.send_text(json.dumps({"type": "error", "error": {"message": message}}))


def _read_error(body: bytes | bytearray | None, status: int) -> str:
    """Return what a refusal of the server says."""
    try:
        return str(json.loads(body or b"")["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"The server has no live video (status {status})."

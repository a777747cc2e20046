"""The page that asks visitors for a key of the server. Until they have signed in, nothing else is served to them."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import partial
from html import escape
from pathlib import Path
from string import Template
from urllib.parse import parse_qs

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from seesay.serving.client import APIError
from seesay.ui.sessions import Sessions, SignedInClient, WrongKeyError
from seesay.ui.tries import Tries

_PAGE = Template((Path(__file__).parent / "login.html").read_text())
_MAX_BODY_BYTES = 8192
_OPEN_PATHS = frozenset({"/gradio_api/startup-events", "/favicon.ico"})
"""Paths that need no key. Gradio asks itself for the first one when it starts."""

_WRONG = "The server does not accept this key."
_UNKNOWN = "The server cannot be reached right now: try again in a moment."
_NO_STORE = {"cache-control": "no-store"}
_log = logging.getLogger("seesay.ui")


class Login:
    """Finds the visitors of a page on `port` by their cookies."""

    def __init__(self, sessions: Sessions, port: int) -> None:
        self.sessions = sessions
        self.tries = Tries()
        self.cookie = f"seesay-session-{port}"  # cookies of a host do not differ by port

    def find_client(self, cookies: Mapping[str, str]) -> SignedInClient | None:
        """Return the client of the visitor with these cookies. None if he is not signed in."""
        token = cookies.get(self.cookie)
        return None if token is None else self.sessions.find(token)


class LoginMiddleware:
    """ASGI middleware that serves the login page, and lets the requests of visitors pass who are signed in."""

    def __init__(self, app: ASGIApp, login: Login) -> None:
        self._app = app
        self._login = login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        cookies = Request({**scope, "type": "http"}).cookies
        path = str(scope["path"]).removeprefix(str(scope.get("root_path", ""))).rstrip("/") or "/"
        if scope.get("method") == "POST" and path in ("/login", "/logout"):
            request = Request(scope, receive)
            response = await self._sign_in(request) if path == "/login" else self._sign_out(request)
            await response(scope, receive, send)
        elif path in _OPEN_PATHS or self._login.find_client(cookies) is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif path in ("/", "/login"):
            await make_response(401)(scope, receive, send)
        else:
            headers = {**_NO_STORE, "x-seesay-login": "required"}  # page.js reloads the page
            await PlainTextResponse("sign in first\n", 401, headers)(scope, receive, send)

    async def _sign_in(self, request: Request) -> Response:
        if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return PlainTextResponse("the key must be entered on this page\n", 403, _NO_STORE)
        body = await _read_body(request)
        address = request.client.host if request.client else ""
        wait_s = self._login.tries.begin(address)
        if wait_s > 0:
            _log.warning("too many wrong keys from %s", address)
            response = make_response(429, f"Too many tries: try again in {math.ceil(wait_s)} s.")
            response.headers["retry-after"] = str(math.ceil(wait_s))
            return response
        key = (parse_qs(body.decode("utf-8", "replace")).get("key") or [""])[0].strip()
        try:
            token = await run_sync(partial(self._login.sessions.sign_in, key))
        except WrongKeyError:
            _log.warning("a wrong key from %s", address)
            return make_response(401, _WRONG)
        except APIError as error:
            _log.warning("a key cannot be checked: %s", error)
            return make_response(503, _UNKNOWN)
        self._login.tries.forgive(address)
        # A cookie of the browser's session, which scripts cannot read and other sites cannot use.
        response = RedirectResponse("./", 303, _NO_STORE)
        is_https = request.url.scheme == "https"
        response.set_cookie(self._login.cookie, token, httponly=True, samesite="lax", secure=is_https)
        return response

    def _sign_out(self, request: Request) -> Response:
        self._login.sessions.sign_out(request.cookies.get(self._login.cookie, ""))
        response = RedirectResponse("./", 303, _NO_STORE)
        response.delete_cookie(self._login.cookie, httponly=True, samesite="lax")
        return response


def make_response(status: int, error: str = "") -> Response:
    """Return the login page, with a sentence about what went wrong."""
    page = _PAGE.substitute(
        DESCRIBED=' aria-invalid="true" aria-describedby="error"' if error else "",
        ERROR=f'<p class="error" id="error" role="alert">{escape(error)}</p>' if error else "",
    )
    return HTMLResponse(page, status, _NO_STORE)


async def _read_body(request: Request) -> bytes:
    """Return the body. One that is too long for a key is cut."""
    body = b""
    async for piece in request.stream():
        body += piece[: _MAX_BODY_BYTES - len(body)]
    return body

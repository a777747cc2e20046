"""Rules of the page's server: it accepts requests under its own names, so that no foreign name that leads here (DNS
rebinding) can use it; and nothing loaded from other hosts, even if foreign HTML gets into the page."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",  # Gradio's own scripts need both
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "media-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "frame-src 'none'",
        "frame-ancestors 'self'",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
    )
)

_TEXT = b"text/plain; charset=utf-8"
_Message = MutableMapping[str, Any]
_Send = Callable[[_Message], Awaitable[None]]
_Receive = Callable[[], Awaitable[_Message]]


_HOSTS_VARIABLE = "SEESAY_UI_HOSTS"
"""Further names of the page, separated by commas: those of a proxy in front of it."""


def find_hosts(server_name: str) -> frozenset[str]:
    """Return the names under which a page that listens on `server_name` may be asked for: those of the machine, too,
    where other machines reach it."""
    names = {"localhost", server_name, *os.environ.get(_HOSTS_VARIABLE, "").split(",")}
    if server_name not in ("localhost", "127.0.0.1", "::1"):
        own = socket.gethostname()
        names |= {own, f"{own}.local", socket.getfqdn()}
    return frozenset(name.strip().lower() for name in names if name.strip())


class PolicyMiddleware:
    """ASGI middleware that refuses requests under other names than `hosts` and addresses, and adds the policy to every
    response. It does not buffer streams."""

    def __init__(
        self, app: Callable[[_Message, _Receive, _Send], Awaitable[None]], hosts: frozenset[str] = frozenset()
    ) -> None:
        self.app = app
        self._hosts = hosts

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        async def send_with_policy(message: _Message) -> None:
            if message["type"] == "http.response.start":
                policy = (
                    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
                    (b"x-content-type-options", b"nosniff"),
                    (b"referrer-policy", b"same-origin"),
                )
                names = {name for name, _ in policy}
                kept = [header for header in message.get("headers", ()) if header[0].lower() not in names]
                message = {**message, "headers": [*kept, *policy]}
            await send(message)

        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
        elif self._is_own(scope):
            await self.app(scope, receive, send_with_policy if scope["type"] == "http" else send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            text = f"this page is not served under this name; {_HOSTS_VARIABLE} allows further ones\n"
            await send_with_policy(
                {"type": "http.response.start", "status": 421, "headers": [(b"content-type", _TEXT)]}
            )
            await send({"type": "http.response.body", "body": text.encode()})

    def _is_own(self, scope: _Message) -> bool:
        """Return whether a request names this server, once. An address cannot be made to lead somewhere else."""
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(given) != 1:
            return False
        name, port = given[0].lower(), ""
        if not name.endswith("]"):
            name, _, port = name.rpartition(":") if ":" in name else (name, "", "")
        if port and not port.isdecimal():
            return False
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return name in self._hosts
        return True

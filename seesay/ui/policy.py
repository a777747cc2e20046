"""Content security policy: the browser loads nothing from other hosts, even if foreign HTML gets into the page."""

from __future__ import annotations

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
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
    )
)

_Message = MutableMapping[str, Any]
_Send = Callable[[_Message], Awaitable[None]]
_Receive = Callable[[], Awaitable[_Message]]


class PolicyMiddleware:
    """ASGI middleware that adds the policy to every response. It does not buffer streams."""

    def __init__(self, app: Callable[[_Message, _Receive, _Send], Awaitable[None]]) -> None:
        self.app = app

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

        await self.app(scope, receive, send_with_policy if scope["type"] == "http" else send)

"""HEAD for every route that takes GET: the same status and headers, no body."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadMiddleware:
    """Answer a HEAD request as GET would be, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        # Copy the scope: the server reads its method too.
        inner: Scope = {**scope, "method": "GET"}
        try:
            await self._app(inner, receive, send_without_body)
        finally:
            if "route" in inner:
                scope["route"] = inner["route"]

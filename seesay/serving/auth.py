"""API keys: `Authorization: Bearer KEY` or `x-api-key: KEY`, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from seesay.serving.errors import ApiError

# What load balancers, browsers and client generators ask for without a key. None of it tells about requests.
_OPEN_PATHS = frozenset({"/", "/health", "/version", "/openapi.json", "/docs/oauth2-redirect"})


class ApiKeyMiddleware:
    """Refuses with 401 what has none of `keys`; open paths and CORS preflights aside."""

    def __init__(self, app: ASGIApp, *, keys: Sequence[str]) -> None:
        self._app = app
        # Digests have one length, so that neither keys nor their lengths show in the time of a comparison.
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN_PATHS and scope["method"] != "OPTIONS":
            self._check(scope)
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        given = _find_keys(scope)
        if not given:
            raise _unauthorized("no API key was given: send it as  Authorization: Bearer KEY  or  x-api-key: KEY")
        matches = [hmac.compare_digest(hashlib.sha256(key).digest(), known) for key in given for known in self._digests]
        if not any(matches):
            raise _unauthorized("the API key is not valid")


def _find_keys(scope: Scope) -> list[bytes]:
    keys = []
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            keys.append(value.strip())
        elif name == b"authorization":
            scheme, _, key = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                keys.append(key.strip())
    return [key for key in keys if key][:4]


def _unauthorized(message: str) -> ApiError:
    return ApiError(
        401, message, kind="authentication_error", code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"}
    )

"""The origins whose browser pages may open a WebSocket. CORS does not hold for these: a browser opens one to any
server, with the cookies and from the network of its user."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.types import Scope

from seesay.errors import show
from seesay.serving.errors import ApiError


def check_origin(scope: Scope, allowed: Sequence[str]) -> None:
    """Raise `ApiError` 403 for a WebSocket of a page whose origin is neither the server's own nor one of `allowed`
    ('*': all). A client that is no browser sends none."""
    origins = _read_header(scope, b"origin")
    if not origins or "*" in allowed or (len(origins) == 1 and origins[0] in map(str.lower, allowed)):
        return
    if len(origins) == 1 and _read_header(scope, b"host") == [_host_of(origins[0])]:
        return
    raise ApiError(
        403,
        f"pages of the origin {show(origins[0])} may not open a WebSocket: allow it with --allow-origins",
        kind="permission_error",
        code="origin_not_allowed",
    )


def _read_header(scope: Scope, name: bytes) -> list[str]:
    """Return the values of a header, all of which count in lower case."""
    return [value.decode("latin-1").lower() for key, value in scope["headers"] if key == name]


def _host_of(origin: str) -> str | None:
    """Return the host and port of an origin. None: it has none, such as that of a local file."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None

"""API keys: `Authorization: Bearer KEY` or `x-api-key: KEY`, compared in constant time. The owner of each request."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Hashable, Sequence

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from seesay.serving.docs_page import DOCS_PATHS, SIMPLE_DOCUMENT
from seesay.serving.errors import ApiError

# Load balancers, browsers and client generators read these without a key. None of them reveals anything of a request.
ADMIN_PATHS = frozenset(
    [
        "/sleep",
        "/wake_up",
        "/wakeup",
        "/update_weights",
        "/terminate",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
    ]
)
NODE_PATHS = frozenset(["/nodes/add", "/nodes/remove", "/nodes/terminate"])  # of a distributor
_OPEN_PATHS = DOCS_PATHS | {SIMPLE_DOCUMENT, "/health", "/live", "/ping", "/ready", "/version"}
_MAX_KEYS = 4  # in one request
KEY_SUBPROTOCOL = "seesay.key."
"""Begins the subprotocol of a WebSocket that ends with a key in base64url."""


def owner_of(scope: Scope) -> bytes:
    """Return the owner of a request. What the server stores for one owner is not shown to another.

    The owner is a digest of the API key, in whichever header it was sent, or of all keys of a request that has several
    (a gateway may add its own). If the server has keys, unknown ones are left out. Empty for a request without a key.
    """
    owner: bytes = scope["state"]["owner"]
    return owner


def require_admin(request: Request) -> None:
    """Raise `ApiError` for a request that has none of the server's admin keys. Called before the body of such a route
    is read, and by the routes themselves, under whatever path they are mounted."""
    if not request.scope["state"]["has_admins"]:
        raise ApiError(
            403,
            "this server has no admin keys: start it with --admin-keys to allow this",
            kind="permission_error",
            code="no_admin_keys",
        )
    if not request.scope["state"]["is_admin"]:
        raise _unauthorized("an admin key is needed: send `Authorization: Bearer KEY` or `x-api-key: KEY`")


def require_operator(http: Request) -> None:
    """Raise `ApiError` for a request without an admin key. Where the server has none, a request needs no key that comes
    from this machine, and neither from a page of another site nor through a proxy."""
    headers, host = http.headers, http.client.host if http.client else ""
    is_here = host == "::1" or host.startswith("127.")
    is_direct = not any(name in headers for name in ("forwarded", "x-forwarded-for", "via"))
    is_own_page = headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    if http.scope["state"]["has_admins"] or not (is_here and is_direct and is_own_page):
        require_admin(http)


def turn_of(scope: Scope) -> Hashable:
    """Return what decides whose turn a request takes: its API key if the server has keys, else the client's address,
    because a client may invent any number of keys."""
    turn: Hashable = scope["state"]["turn"]
    return turn


class ApiKeyMiddleware:
    """Find the owner of each request. If the server has `keys`, refuse a request that has none of them with 401, except
    for open paths and CORS preflights. `admin_keys` are accepted as well; see `require_admin`."""

    def __init__(self, app: ASGIApp, *, keys: Sequence[str], admin_keys: Sequence[str] = ()) -> None:
        self._app = app
        # Digests have equal lengths, so the time of a comparison reveals neither a key nor its length.
        self._admins = [_digest(key.encode()) for key in admin_keys]
        self._known = [_digest(key.encode()) for key in (*keys, *admin_keys)] if keys else []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            self._note_owner(scope)
        if scope["type"] == "http" and scope["method"] == "POST":
            if scope["path"] in ADMIN_PATHS:
                require_admin(Request(scope))  # before the body is read
            elif scope["path"] in NODE_PATHS:
                require_operator(Request(scope))
        await self._app(scope, receive, send)

    def _note_owner(self, scope: Scope) -> None:
        """Write into the scope's state who asks, whether as an admin and whether any are, and whose turn it takes.
        Raises `ApiError` for a request without a key."""
        keys, others = _find_credentials(scope)
        valid = _select(keys, self._known) if self._known else keys + others
        if self._known and not valid and scope["path"] not in _OPEN_PATHS and scope.get("method") != "OPTIONS":
            raise _refuse(bool(keys))
        owner = hashlib.sha256(b"".join(sorted(set(valid)))).digest() if valid else b""
        state = scope.setdefault("state", {})
        state["owner"] = owner
        state["has_admins"] = bool(self._admins)
        state["is_admin"] = bool(_select(keys, self._admins))
        state["turn"] = owner if self._known and owner else _network_of(scope)


def _select(keys: Sequence[bytes], known: Sequence[bytes]) -> list[bytes]:
    """Return those of `keys` that are among the known ones."""
    return [key for key in keys if _is_among(key, known)]


def _is_among(key: bytes, known: Sequence[bytes]) -> bool:
    return sum(hmac.compare_digest(key, other) for other in known) > 0  # compares all, in constant time


def _find_credentials(scope: Scope) -> tuple[list[bytes], list[bytes]]:
    """Return the digests of the keys in the headers, and of `Authorization` headers of other schemes. A browser, whose
    WebSockets have no such headers, names its key in a subprotocol."""
    keys = _find_subprotocol_keys(scope)
    others: list[bytes] = []
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            keys.append(value.strip())
        elif name == b"authorization":
            scheme, _, rest = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                keys.append(rest.strip())
            else:
                others.append(b" ".join((scheme.lower() if rest else scheme, rest.strip())))
    if len(keys) + len(others) > _MAX_KEYS:
        raise _unauthorized(f"the request has {len(keys) + len(others)} API keys; at most {_MAX_KEYS} are allowed")
    return [_digest(key) for key in keys if key], [_digest(b"authorization " + value) for value in others]


def _find_subprotocol_keys(scope: Scope) -> list[bytes]:
    names = (name for name in scope.get("subprotocols", ()) if name.startswith(KEY_SUBPROTOCOL))
    encoded = [name.removeprefix(KEY_SUBPROTOCOL) for name in names]
    try:
        return [base64.urlsafe_b64decode(key + "=" * (-len(key) % 4)) for key in encoded]
    except ValueError:
        raise _unauthorized(f"{KEY_SUBPROTOCOL}… must end with the key in base64url") from None


def _network_of(scope: Scope) -> str:
    """Return the client's IPv4 address, or its IPv6 /64 network, all of which usually belongs to one client."""
    host = str((scope.get("client") or ("",))[0])
    return ":".join(host.split(":")[:4]) if ":" in host else host


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _refuse(was_given: bool) -> ApiError:
    if was_given:
        return _unauthorized("the API key is not valid")
    return _unauthorized("no API key was given: send `Authorization: Bearer KEY` or `x-api-key: KEY`")


def _unauthorized(message: str) -> ApiError:
    return ApiError(
        401, message, kind="authentication_error", code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"}
    )

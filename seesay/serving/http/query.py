"""Checks of routes whose options are in the URL."""

from __future__ import annotations

from collections.abc import Container

from starlette.requests import Request

from seesay.serving.errors import bad_request

_EMPTY_BODIES = b"", b"{}", b"null"
"""Clients that send JSON everywhere send these where there is nothing to say."""


async def refuse_unknown(http: Request, *known: str, lists: Container[str] = ()) -> None:
    """Raise `ApiError` for a query parameter that is not `known` or, unless it is one of `lists`, given twice; and for
    a body with options."""
    for name in http.query_params:
        if name not in known:
            found = f"unknown query parameter: {name[:80]!r}; known are {', '.join(known) or 'none'}"
            raise bad_request(found, name[:80])
        if name not in lists and len(http.query_params.getlist(name)) > 1:
            raise bad_request(f"{name}: given more than once", name)
    if (await http.body()).strip() not in _EMPTY_BODIES:
        options = f"its options are query parameters ({', '.join(known)})" if known else "it has no options"
        raise bad_request(f"{http.url.path} takes no body: {options}")

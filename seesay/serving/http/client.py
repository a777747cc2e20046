"""HTTP to the nodes, with aiohttp: requests and answers pass as they are."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, suppress
from functools import lru_cache

import aiohttp
from yarl import URL

from seesay.serving.errors import bad_request

LOST = (aiohttp.ClientError, TimeoutError)
"""What a request raises whose node takes no connection, ends before it has answered, or is ended by `Node.end`."""
GONE = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""Those of `LOST` whose node has not had the request."""
_CONNECT_S = 5.0
_IDLE_S = 4.0
"""uvicorn closes a connection that was idle for 5 s."""
_MAX_HEADER_BYTES = 64 << 10
_AT_ONCE_BYTES = 64 << 10
"""Up to so many bytes of a body are written in one piece; of more, aiohttp would copy and write all at once, too."""


def open_client() -> aiohttp.ClientSession:
    """Return a client that adds nothing to requests, keeps no cookies, and leaves answers compressed."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("accept", "accept-encoding", "content-type", "user-agent"),
        auto_decompress=False,
        max_line_size=_MAX_HEADER_BYTES,
        max_field_size=_MAX_HEADER_BYTES,
    )


@lru_cache(1024)
def _parse(url: str) -> URL:
    """Return a URL as it is. Most requests are for the same few."""
    return URL(url, encoded=True)


def request(
    client: aiohttp.ClientSession,
    method: str,
    url: str,
    headers: Iterable[tuple[bytes, bytes]] = (),
    body: bytes = b"",
) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
    """Return the context of a request, in which the head of its answer is there. Raises what is `LOST`."""
    try:
        decoded = [(name.decode(), value.decode()) for name, value in headers]
    except UnicodeDecodeError:
        raise bad_request("the headers must be UTF-8") from None
    data = io.BytesIO(body) if len(body) > _AT_ONCE_BYTES else body or None
    return client.request(method, _parse(url), headers=decoded, data=data, allow_redirects=False)


async def fetch(
    client: aiohttp.ClientSession,
    url: str,
    headers: Iterable[tuple[bytes, bytes]] = (),
    *,
    method: str = "GET",
    body: bytes = b"",
    timeout_s: float | None = None,
) -> tuple[int, bytes]:
    """Send a request, and return the status and the body of the answer; 0 and nothing if none comes."""
    with suppress(*LOST):
        async with asyncio.timeout(timeout_s), request(client, method, url, headers, body) as answer:
            return answer.status, await answer.read()
    return 0, b""

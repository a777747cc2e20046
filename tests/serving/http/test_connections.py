"""What a connection may do: shut one side down, name the server, encode a body, drip."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from live_server import LiveServer, make_settings, wait_until

from seesay.engine.front.engine import AsyncEngine
from seesay.serving.app import create_app
from seesay.serving.operating import adapters, admin
from seesay.serving.traffic.auth import ADMIN_PATHS

CHAT = "/v1/chat/completions"
BODY = b'{"messages": [{"role": "user", "content": "go on"}], "max_tokens": %d, "ignore_eos": true%s}'


def ask(server: LiveServer, data: bytes, *, shuts_down: bool = False) -> bytes:
    """Send bytes, perhaps shut our side down, and return all that comes until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(60)
        client.sendall(data)
        if shuts_down:
            client.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := client.recv(65536):
            answer += piece
    return answer


def post(
    body: bytes, *headers: bytes, host: bytes = b"Host: x\r\n", version: bytes = b"1.1", path: str = CHAT
) -> bytes:
    fields = b"".join(header + b"\r\n" for header in headers)
    length = b"" if any(b"chunked" in header for header in headers) else b"Content-Length: %d\r\n" % len(body)
    head = b"POST %s HTTP/%s\r\n%sContent-Type: application/json\r\n" % (CHAT.encode(), version, host)
    return head + length + fields + b"\r\n" + body


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_a_half_closed_client_gets_its_answer(server: LiveServer, version: bytes, streams: bool) -> None:
    body = BODY % (100, b', "stream": true' if streams else b"")
    answer = ask(server, post(body, version=version), shuts_down=True)
    assert b"HTTP/1.1 200 " in answer
    assert (b"data: [DONE]" if streams else b'"finish_reason":"length"') in answer
    assert answer.startswith(b"HTTP/1.1 200 " if version == b"1.0" else b"HTTP/1.1 ")


OFFER = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAEAAEAAAAIAAAAB")
"""What Java's `HttpClient` says in its first request."""


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_an_offer_of_http2_is_not_taken(server: LiveServer, streams: bool) -> None:
    """Its parser leaves the body out: the answer was a 400. What follows on the connection is answered, too."""
    asked = post(BODY % (5, b', "stream": true' if streams else b""), *OFFER)
    answer = ask(server, asked + asked + b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n", shuts_down=True)
    assert answer.count(b"HTTP/1.1 200 ") == 3 and b"upgrade" not in answer.lower()
    assert answer.count(b"data: [DONE]" if streams else b'"finish_reason":"length"') == 2 and b'"version"' in answer


@pytest.mark.parametrize("size", [1, 7, 60, 150])
def test_an_offer_comes_in_pieces(server: LiveServer, size: int) -> None:
    body = BODY % (5, b"")
    data = post(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body), *OFFER, b"Transfer-Encoding: chunked")
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(60)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(data), size):
            client.sendall(data[start : start + size])
        answer = client.recv(65536)
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_what_offers_and_is_no_request_is_refused(server: LiveServer) -> None:
    fields = b"\r\n".join(OFFER)
    assert ask(server, b"GET /version HTTP/1.1\r\n" + fields + b"\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    large = post(BODY % (5, b""), *OFFER, b"X-Large: " + b"x" * 70_000)
    assert ask(server, large).startswith(b"HTTP/1.1 431 ")
    assert ask(server, b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_requests_sent_ahead_are_answered_behind_the_end_too(server: LiveServer) -> None:
    answer = ask(server, post(BODY % (5, b"")) + b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n", shuts_down=True)
    assert answer.count(b"HTTP/1.1 200 ") == 2 and b'"version"' in answer


def test_a_client_that_closes_altogether_aborts_its_request(server: LiveServer) -> None:
    for lingers in (True, False):
        client = socket.create_connection(("127.0.0.1", server.port))
        client.sendall(post(BODY % (450, b"")))
        wait_until(lambda: server.state.answering.num_running == 1)
        if not lingers:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        wait_until(lambda: server.state.answering.num_running == 0)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"", b"400"),
        (b"Host: a\r\nHost: b\r\n", b"400"),
        (b"Host: a\r\nhost: a\r\n", b"400"),
        (b"Host: a\r\n", b"200"),
        (b"Host:\r\n", b"200"),
    ],
)
def test_a_request_has_one_host(server: LiveServer, host: bytes, status: bytes) -> None:
    answer = ask(server, b"GET /health HTTP/1.1\r\n" + host + b"Connection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert ask(server, b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"Content-Encoding: gzip", b"415"),
        (b"Content-Encoding: identity, br", b"415"),
        (b"Transfer-Encoding: gzip, chunked", b"501"),
        (b"Content-Encoding: Identity", b"200"),
    ],
)
def test_codings_that_are_not_decoded_are_refused(server: LiveServer, header: bytes, status: bytes) -> None:
    body = BODY % (1, b"")
    sent = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if b"chunked" in header else body
    answer = ask(server, post(sent, header, b"Connection: close"))
    assert answer.startswith(b"HTTP/1.1 " + status), answer


def test_a_body_that_drips_ends_as_a_head_does(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A route that reads no body is no exception."""
    monkeypatch.setattr("seesay.serving.http.http_protocol.HEAD_TIMEOUT_S", 1.0)
    for request in (post(b"x" * 30), b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 90\r\n\r\n"):
        head, _, _ = request.partition(b"\r\n\r\n")
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.settimeout(60)
            client.sendall(head + b"\r\n\r\n")
            answer = b""
            with contextlib.suppress(ConnectionError):
                while not answer.endswith(b"}"):
                    client.sendall(b" ")
                    if select.select([client], [], [], 0.2)[0]:
                        answer += client.recv(65536)
                while client.recv(65536):
                    client.sendall(b" ")
        assert answer.startswith(b"HTTP/1.1 408 " if b"POST" in head else b"HTTP/1.1 200 "), answer
    wait_until(lambda: server.state.gate.num_inside == 0)


async def test_admin_routes_ask_for_the_key_before_anything_else(engine: AsyncEngine) -> None:
    app = create_app(engine, make_settings(api_keys=("a",), admin_keys=("admin",)))
    routers = (module.make_router(app.state.server) for module in (admin, adapters))
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    assert {route.path for route in routes if "POST" in (route.methods or ())} == ADMIN_PATHS
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
        for path in sorted(ADMIN_PATHS):
            options: dict[str, Any]
            for options in ({"content": b"{no json"}, {"params": {"level": "x", "nope": 1}}):
                answer = await client.post(path, headers={"x-api-key": "a"}, **options)
                assert answer.status_code == 401 and "admin key" in answer.json()["error"]["message"], (path, options)

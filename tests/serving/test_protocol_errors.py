"""What is refused before a route sees it has the envelope of other errors; HEAD goes wherever GET goes."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest
from live_server import LiveServer, make_settings, serve

from seesay.engine.front.engine import AsyncEngine

POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def say(server: LiveServer, request: bytes) -> tuple[int, dict[bytes, bytes], Any]:
    """Status, headers and JSON of the answer to these bytes; the server closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(60)
        client.sendall(request)
        answer = b""
        while piece := client.recv(65536):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines)}
    assert int(headers[b"content-length"]) == len(body), answer
    return int(status.split()[1]), headers, json.loads(body)


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"hello\r\n\r\n", 400, "invalid_http"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "invalid_http"),  # TLS
        (b"GET /health HTTP/9.9\r\n\r\n", 400, "invalid_http"),
        (b"GET /health HTTP/1.1\r\nbad header\r\n\r\n", 400, "invalid_http"),
        (b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_http"),
        (b"GET /health HTTP/1.1\r\nHost: a b/\r\n\r\n", 400, "invalid_http"),
        (POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n{}", 400, "invalid_http"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n", 400, "invalid_http"),
        (b"GET /health HTTP/1.1\r\na: " + b"x" * 70_000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 100_000 + b"\r\n", 431, "headers_too_large"),
    ],
)
def test_protocol_errors_are_json(server: LiveServer, request_bytes: bytes, status: int, code: str) -> None:
    got, headers, body = say(server, request_bytes)
    assert (got, body["error"]["code"]) == (status, code), body
    assert headers[b"x-request-id"].startswith(b"req_") and headers[b"request-id"] == headers[b"x-request-id"]
    assert headers[b"content-type"] == b"application/json" and headers[b"connection"] == b"close"
    assert set(body["error"]) == {"message", "type", "param", "code"} and body["error"]["message"]


def test_they_have_the_envelope_of_their_path(server: LiveServer) -> None:
    request = POST.replace(b"chat/completions", b"messages") + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"
    status, _, body = say(server, request)
    assert status == 400 and body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
    status, _, body = say(server, b"GET /v1/messages?x HTTP/1.1\r\na: " + b"x" * 70_000 + b"\r\n\r\n")
    assert status == 431 and body["type"] == "error" and "65536 bytes" in body["error"]["message"]


def test_a_request_that_the_parser_refuses_has_no_second_answer(
    server: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The route refuses its head, and the parser its body: an answer behind the closed side was an exception."""
    request = POST + b"Transfer-Encoding: xchunked\r\n\r\nno request"
    assert say(server, request)[0] in (400, 501)
    assert httpx.get(f"{server.url}/health", timeout=60).status_code == 200
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_web_socket_is_answered_as_http(server: LiveServer) -> None:
    upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": "x"}
    response = httpx.get(f"{server.url}/v1/realtime", headers=upgrade, timeout=60)
    assert response.status_code == 404 and response.json()["error"]["code"] == "not_found"


def test_protocol_errors_have_the_id_of_the_client(server: LiveServer) -> None:
    head = POST + b"x-request-id: mine\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    assert say(server, head)[1][b"x-request-id"] == b"mine"


def test_allow_names_head_where_it_is_taken(server: LiveServer) -> None:
    refused = httpx.post(f"{server.url}/v1/models", timeout=60)
    assert refused.status_code == 405 and set(refused.headers["allow"].split(", ")) == {"GET", "HEAD"}
    assert httpx.head(f"{server.url}/v1/models", timeout=60).status_code == 200
    assert httpx.get(f"{server.url}/v1/chat/completions", timeout=60).headers["allow"] == "POST"


def test_head_is_get_without_a_body(engine: AsyncEngine) -> None:
    with serve(engine, make_settings(api_keys=("k",))) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        paths = [path for path, item in http.get("/openapi.json").json()["paths"].items() if "get" in item]
        assert len(paths) >= 6
        for path in [*paths, "/", "/openapi.json", "/docs/swagger-ui.css", "/nothing", "/v1/chat/completions"]:
            for headers in ({"x-api-key": "k"}, {}):
                got, head = http.get(path, headers=headers), http.head(path, headers=headers)
                assert head.status_code == got.status_code and head.content == b"", path
                if path != "/metrics":
                    assert head.headers["content-length"] == got.headers["content-length"]
                for name in ("content-type", "allow", "www-authenticate"):
                    assert head.headers.get(name) == got.headers.get(name)
        text = http.get("/metrics", headers={"x-api-key": "k"}).text
        assert 'seesay_http_requests_total{endpoint="/version",status="200"} 4.0' in text

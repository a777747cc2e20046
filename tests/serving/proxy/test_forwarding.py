"""The distributor passes requests on to nodes as they are, and answers back as they come. Nodes are real processes."""

from __future__ import annotations

import concurrent.futures
import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from echo_node import EchoProcess, echo_nodes, start_node
from live_proxy import LiveProxy, serve_proxy
from waiting import wait_until


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[EchoProcess]]:
    with echo_nodes(4) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def proxy(nodes: list[EchoProcess]) -> Iterator[LiveProxy]:
    with serve_proxy([node.url for node in nodes]) as proxy:
        yield proxy


def counts(nodes: list[EchoProcess], name: str) -> list[int]:
    return [httpx.get(f"{node.url}/counts").json()[name] for node in nodes]


def test_forward_whole_request(proxy: LiveProxy) -> None:
    answer = httpx.put(
        f"{proxy.url}/some%20path/x?a=1&b=%2F",
        content=b"raw \xff bytes",
        headers={"traceparent": "00-abc-def-01", "authorization": "Bearer k", "x-request-id": "mine"},
    )
    seen = answer.json()
    assert (seen["method"], seen["path"], seen["query"]) == ("PUT", "/some%20path/x", "a=1&b=%2F")
    assert seen["body"] == "raw ÿ bytes"
    headers = dict(seen["headers"])
    assert headers["traceparent"] == "00-abc-def-01" and headers["authorization"] == "Bearer k"
    assert headers["x-request-id"] == "mine" and answer.headers.get_list("x-request-id") == ["mine"]
    assert headers["x-forwarded-for"] == "127.0.0.1"
    assert headers["content-length"] == "11" and "transfer-encoding" not in headers
    assert headers["host"] != httpx.URL(proxy.url).netloc.decode()
    assert answer.headers["x-node"] == "1" and len(answer.headers.get_list("date")) == 1


def test_forward_upload(proxy: LiveProxy) -> None:
    files = {"file": ("a.bin", bytes(range(256)) * 8192, "application/octet-stream")}
    answer = httpx.post(f"{proxy.url}/v1/files", files=files, timeout=60).json()
    assert answer["num_bytes"] > 256 * 8192
    assert dict(answer["headers"])["content-type"].startswith("multipart/form-data; boundary=")


def test_status_of_node(proxy: LiveProxy) -> None:
    answer = proxy.post(status=418)
    assert answer.status_code == 418 and answer.json()["node"]


def test_head(proxy: LiveProxy) -> None:
    answer = httpx.head(f"{proxy.url}/anything")
    assert answer.status_code == 200 and answer.content == b""


def test_stream_comes_unbuffered(proxy: LiveProxy, nodes: list[EchoProcess]) -> None:
    """The first event arrives while the node waits before the second."""
    seen = b""
    with post_slowly(proxy, {"stream": True, "num_events": 2, "pause_s": 3600}) as client:
        client.settimeout(60)
        while b'"index": 0' not in seen:
            seen += client.recv(1000)
        assert sum(counts(nodes, "running")) == 1
        # A reset: of a client that ends its half of a connection, a stream learns at the next event.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: sum(counts(nodes, "running")) == 0)


def test_whole_stream(proxy: LiveProxy) -> None:
    text = proxy.post(stream=True, num_events=500).text
    lines = [line for line in text.split("\n\n") if line]
    assert [json.loads(line[6:])["index"] for line in lines[:-1]] == list(range(500)) and lines[-1] == "data: [DONE]"


def post_slowly(proxy: LiveProxy, body: dict[str, object]) -> socket.socket:
    """Return a connection that has sent a request, and has read nothing."""
    data = json.dumps(body).encode()
    client = socket.create_connection(("127.0.0.1", int(proxy.url.rpartition(":")[2])))
    client.sendall(b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
    return client


def test_hang_up_cancels(proxy: LiveProxy, nodes: list[EchoProcess]) -> None:
    """Both before the answer and within a stream."""
    wait_until(lambda: sum(counts(nodes, "running")) == 0)
    before = sum(counts(nodes, "gone"))
    late: dict[str, object] = {"wait_s": 3600}
    stream: dict[str, object] = {"stream": True, "pause_s": 0.1, "num_events": 36_000}
    for body in (late, stream):
        with post_slowly(proxy, body) as client:
            wait_until(lambda: sum(counts(nodes, "running")) == 1)
            if body is stream:
                assert client.recv(100).startswith(b"HTTP/1.1 200")
        wait_until(lambda: sum(counts(nodes, "running")) == 0)
    wait_until(lambda: sum(counts(nodes, "gone")) == before + 2)
    wait_until(lambda: all(node.num_running == 0 for node in proxy.nodes))


def test_slow_client_holds_the_node_back(proxy: LiveProxy, nodes: list[EchoProcess]) -> None:
    """What a client does not take is not read from the node: of 140 MB, it can send what the sockets' buffers hold."""
    before, num_events = sum(counts(nodes, "events")), 4_000_000

    def has_stopped() -> bool:
        sent = sum(counts(nodes, "events"))
        time.sleep(1)
        return sent > before and sum(counts(nodes, "events")) == sent

    with post_slowly(proxy, {"stream": True, "num_events": num_events}) as client:
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        wait_until(has_stopped)
        assert sum(counts(nodes, "events")) - before < num_events / 2
    wait_until(lambda: sum(counts(nodes, "running")) == 0)


@pytest.mark.parametrize("line", ["CONNECT @127.0.0.1:1", "CONNECT .example.com", "OPTIONS *"])
def test_target_is_a_path(proxy: LiveProxy, nodes: list[EchoProcess], line: str) -> None:
    """Behind the URL of a node, anything else could name another host."""
    before = sum(counts(nodes, "requests"))
    with socket.create_connection(("127.0.0.1", int(proxy.url.rpartition(":")[2]))) as client:
        client.sendall(f"{line} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 4") and sum(counts(nodes, "requests")) == before


def send_raw(proxy: LiveProxy, head: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", int(proxy.url.rpartition(":")[2]))) as client:
        client.sendall(head + b"connection: close\r\n\r\n")
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def test_headers_pass_as_they_are(proxy: LiveProxy) -> None:
    """Those that come twice, and UTF-8; other bytes could not be passed on, and cookies are nobody else's."""
    answer = send_raw(proxy, "GET /x HTTP/1.1\r\nhost: a\r\nx-a: 1\r\nx-a: é\r\ncookie: k=v\r\n".encode())
    headers = json.loads(answer.partition(b"\r\n\r\n")[2])["headers"]
    assert [value.encode("latin-1").decode() for name, value in headers if name == "x-a"] == ["1", "é"]
    assert {"accept", "accept-encoding", "user-agent", "content-type"}.isdisjoint(name for name, _ in headers)
    assert "cookie" not in dict(httpx.get(f"{proxy.url}/x").json()["headers"])
    assert send_raw(proxy, b"GET /x HTTP/1.1\r\nhost: a\r\nx-a: \xff\r\n").startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "line",
    ["content-encoding: gzip", "transfer-encoding: gzip, chunked", "host: b", "content-length: 4\r\ncontent-length: 5"],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_ambiguous_requests_reach_no_node(proxy: LiveProxy, nodes: list[EchoProcess], method: str, line: str) -> None:
    before = sum(counts(nodes, "requests"))
    answer = send_raw(proxy, f"{method} /x HTTP/1.1\r\nhost: a\r\n{line}\r\n".encode())
    assert answer[9:12] in (b"400", b"415", b"501") and sum(counts(nodes, "requests")) == before


def test_refused_node_is_passed_over(nodes: list[EchoProcess]) -> None:
    """Requests to a node that is gone are answered by others, which counts as retries."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{sock.getsockname()[1]}"
    with serve_proxy([gone, nodes[0].url], strategy="random") as proxy:
        assert {proxy.post().json()["node"] for _ in range(20)} == {"a"}
        status = httpx.get(f"{proxy.url}/nodes/status").json()
        assert not status[gone]["is_up"] and status[nodes[0].url]["is_up"]
        assert proxy.metric(f'seesay_proxy_node_up{{node="{gone}"}}') == 0
        assert proxy.metric(f'seesay_proxy_requests_total{{node="{nodes[0].url}",status="200"}}') == 20


@pytest.mark.parametrize("order_name", ["die_before", "die_behind"])
def test_death_before_the_answer(order_name: str, tmp_path: Path) -> None:
    """A request whose node dies before the first byte of the body goes to another one; the client sees nothing of
    it."""
    with echo_nodes(2) as nodes, serve_proxy([node.url for node in nodes]) as proxy:
        order = tmp_path / "die"
        order.touch()
        answer = proxy.post(**{order_name: str(order)})
        assert answer.status_code == 200
        wait_until(lambda: any(node.process.poll() is not None for node in nodes))
        dead = [node for node in nodes if node.process.poll() is not None]
        assert len(dead) == 1 and answer.json()["node"] != dead[0].name
        assert proxy.metric("seesay_proxy_retries_total") == 1


def test_deadly_request_spares_the_last_nodes(tmp_path: Path) -> None:
    """A request that kills each node that begins it is not given to all."""
    with echo_nodes(4) as nodes, serve_proxy([node.url for node in nodes]) as proxy:
        answer = proxy.post(die=True)
        assert answer.status_code == 502 and answer.json()["error"]["code"] == "node_lost"
        assert len([node for node in nodes if node.process.poll() is None]) >= 2


@pytest.mark.parametrize(
    ("path", "event"),
    [
        ("/v1/chat/completions", 'data: {"error":{"message":"the server that computed'),
        ("/v1/messages", 'event: error\ndata: {"type":"error","error":{"type":"api_error"'),
        ("/v1/responses", 'event: error\ndata: {"error":{"message":"the server that computed'),
    ],
)
def test_death_within_a_stream(path: str, event: str) -> None:
    """A stream that has begun ends with an error in the client's format, and is not begun again elsewhere."""
    with echo_nodes(2) as nodes, serve_proxy([node.url for node in nodes]) as proxy:
        text = proxy.post(path, stream=True, die_after=2, num_events=5, pause_s=0.01).text
        assert text.count('"index":') + text.count('"index": ') >= 2
        assert text.split("\n\n")[2].startswith(event), text
        wait_until(lambda: sum(node.process.poll() is not None for node in nodes) == 1)


def test_death_within_another_answer_breaks_it(nodes: list[EchoProcess]) -> None:
    """Where no error can stand, the client sees a broken answer, not a whole one."""
    with (
        echo_nodes(1) as nodes,
        serve_proxy([node.url for node in nodes]) as proxy,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        proxy.post(stream=True, die_after=2, content_type="application/json", pause_s=0.01)


def test_no_node() -> None:
    with serve_proxy([]) as proxy:
        answer = proxy.post("/v1/messages")
        assert answer.status_code == 503 and answer.json()["type"] == "error" and answer.headers["retry-after"] == "5"
        assert httpx.get(f"{proxy.url}/health").status_code == 503
        assert httpx.get(f"{proxy.url}/live").status_code == 200


def test_unhealthy_node_comes_back() -> None:
    """A node that says that it is ill gets no requests until it is well again."""
    with echo_nodes(2) as nodes, serve_proxy([node.url for node in nodes], strategy="random") as proxy:
        httpx.post(f"{nodes[0].url}/set_health", json={"status": 503})
        wait_until(lambda: [node.is_up for node in proxy.nodes] == [False, True])
        assert {proxy.post().json()["node"] for _ in range(20)} == {"b"}
        httpx.post(f"{nodes[0].url}/set_health", json={"status": 200})
        wait_until(lambda: all(node.is_up for node in proxy.nodes))
        assert {proxy.post().json()["node"] for _ in range(60)} == {"a", "b"}


def test_restarted_node_comes_back() -> None:
    with echo_nodes(1) as nodes, serve_proxy([nodes[0].url]) as proxy:
        nodes[0].process.kill()
        nodes[0].process.wait()
        wait_until(lambda: proxy.post().status_code == 503)
        nodes[0] = start_node("a", int(nodes[0].url.rpartition(":")[2]))
        wait_until(lambda: proxy.post().status_code == 200)


def test_busy_answer_of_a_node_goes_elsewhere(nodes: list[EchoProcess]) -> None:
    """A 503 is a request that was not begun. When all say so, the client gets the answer of the last."""
    with serve_proxy([node.url for node in nodes[:2]]) as proxy:
        assert proxy.post(status=503).json()["node"] in "ab"
        assert proxy.metric('seesay_proxy_retries_total{reason="status 503"}') == 1


def test_flood(proxy: LiveProxy, nodes: list[EchoProcess]) -> None:
    """Many at once are all answered once, over a bounded number of nodes' requests."""
    before = sum(counts(nodes, "requests"))
    with concurrent.futures.ThreadPoolExecutor(32) as threads, httpx.Client(timeout=60) as client:
        answers = list(threads.map(lambda i: client.post(f"{proxy.url}/x", json={"prompt": f"{i} x"}), range(400)))
    assert [json.loads(answer.json()["body"])["prompt"] for answer in answers] == [f"{i} x" for i in range(400)]
    assert sum(counts(nodes, "requests")) == before + 400


def test_body_limit(nodes: list[EchoProcess]) -> None:
    with serve_proxy([nodes[0].url], max_body_bytes=1000) as proxy:
        assert proxy.post(text="x" * 2000).status_code == 413
        assert httpx.put(f"{proxy.url}/x", content=b"x" * (2 << 20)).status_code == 413

"""Nodes come and go over HTTP, under keys; and the distributor's own routes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator

import httpx
import pytest
from echo_node import EchoProcess, echo_nodes
from live_proxy import serve_proxy
from live_server import make_settings
from waiting import until, wait_until

from seesay.serving.errors import ApiError
from seesay.serving.http.listener import open_sockets, read_url
from seesay.serving.proxy.app import serve_nodes
from seesay.serving.proxy.nodes import Nodes


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[EchoProcess]]:
    with echo_nodes(4) as nodes:
        yield nodes


def names(url: str) -> list[str]:
    return list(httpx.get(f"{url}/nodes/status").json())


def test_add_status_remove(nodes: list[EchoProcess]) -> None:
    """As LMDeploy's users do it: the URL in the body when a node is added, in the query when it is removed."""
    with serve_proxy([]) as proxy:
        added = httpx.post(f"{proxy.url}/nodes/add", json={"url": f"{nodes[0].url}/", "status": {"speed": 5}})
        assert added.status_code == 200
        httpx.post(f"{proxy.url}/nodes/add", json={"url": nodes[0].url})
        [status] = httpx.get(f"{proxy.url}/nodes/status").json().values()
        assert status["speed"] == 5 and status["unfinished"] == 0 and status["is_up"]
        assert proxy.post().json()["node"] == "a"
        assert len(httpx.get(f"{proxy.url}/nodes/status").json()[nodes[0].url]["latency"]) == 1
        unknown = httpx.post(f"{proxy.url}/nodes/remove?node_url=http://127.0.0.1:1")
        assert unknown.status_code == 404 and names(proxy.url) == [nodes[0].url]
        assert httpx.post(f"{proxy.url}/nodes/remove", params={"node_url": nodes[0].url}).status_code == 200
        assert names(proxy.url) == [] and proxy.post().status_code == 503


def test_terminate(nodes: list[EchoProcess]) -> None:
    """The node is removed and told to end."""
    with serve_proxy([nodes[3].url]) as proxy:
        answer = httpx.post(f"{proxy.url}/nodes/terminate", json={"url": nodes[3].url})
        assert answer.status_code == 200 and names(proxy.url) == []
    assert httpx.get(f"{nodes[3].url}/counts").json()["terminated"] == 1


@pytest.mark.parametrize(
    "url",
    ["ftp://a:1", "http://", "file:///etc/passwd", "http://a:1/path", "http://u:p@a:1", "http://a:1?x", "http://a:99999",
     "http://a\r\nb:1", "a:1", "", None, 5],
)  # fmt: skip
def test_refused_urls(url: object) -> None:
    with pytest.raises(ApiError, match="url must be"):
        read_url(url)


def test_read_url() -> None:
    assert read_url("HTTP://Example.com/") == "http://example.com:80"
    assert read_url("https://[::1]") == "https://[::1]:443"


def test_changes_need_an_admin_key(nodes: list[EchoProcess]) -> None:
    """Who may use the distributor must not be able to send others' requests to a server of theirs."""
    with serve_proxy([], api_keys=("user",), admin_keys=("admin",)) as proxy:
        for change in ("add", "remove", "terminate"):
            url = f"{proxy.url}/nodes/{change}"
            body = {"url": nodes[0].url}
            assert httpx.post(url, json=body).status_code == 401
            assert httpx.post(url, json=body, headers={"x-api-key": "user"}).status_code == 401
        assert httpx.get(f"{proxy.url}/nodes/status").status_code == 401
        add = httpx.post(f"{proxy.url}/nodes/add", json={"url": nodes[0].url}, headers={"x-api-key": "admin"})
        assert add.status_code == 200
        assert proxy.post().status_code == 401
        answer = httpx.post(f"{proxy.url}/x", json={}, headers={"authorization": "Bearer user"})
        assert answer.status_code == 200 and dict(answer.json()["headers"])["authorization"] == "Bearer user"


@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded", "via", "sec-fetch-site"])
def test_changes_without_keys_are_for_this_machine(nodes: list[EchoProcess], header: str) -> None:
    """Neither for those behind a proxy on this machine, nor for pages of other sites in a browser on it."""
    with serve_proxy([]) as proxy:
        body = {"url": nodes[0].url}
        answer = httpx.post(f"{proxy.url}/nodes/add", json=body, headers={header: "cross-site"})
        assert answer.status_code == 403 and "--admin-keys" in answer.json()["error"]["message"]
        assert httpx.post(f"{proxy.url}/nodes/add", json=body).status_code == 200


def test_no_open_proxy(nodes: list[EchoProcess]) -> None:
    """The target of a request is always a node, whatever the request line and Host name."""
    with serve_proxy([nodes[0].url]) as proxy:

        def ask(line: str, host: str) -> bytes:
            with socket.create_connection(("127.0.0.1", int(proxy.url.rpartition(":")[2]))) as client:
                client.sendall(f"{line} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
                return b"".join(iter(lambda: client.recv(1 << 16), b""))

        assert b'"node": "a"' in ask(f"GET {nodes[1].url}/x", "example.com")
        assert b" 200 " not in ask("CONNECT 127.0.0.1:1", "127.0.0.1:1").partition(b"\r\n")[0]


def test_models_are_merged(nodes: list[EchoProcess]) -> None:
    with serve_proxy([node.url for node in nodes[:2]]) as proxy:
        models = httpx.get(f"{proxy.url}/v1/models").json()
        assert [model["id"] for model in models["data"]] == ["echo", "only-a", "only-b"]


def test_model_decides(nodes: list[EchoProcess]) -> None:
    """A request goes to a node that has its model; one for an unknown model goes to any, which refuses it."""
    with serve_proxy([node.url for node in nodes[:3]], strategy="random") as proxy:
        wait_until(lambda: all(node.models for node in proxy.nodes))
        assert {proxy.post(model="only-b").json()["node"] for _ in range(10)} == {"b"}
        assert proxy.post(model="unknown").status_code == 200


def test_stored_responses_stay_with_their_node(nodes: list[EchoProcess]) -> None:
    """What continues a stored response goes where that is, as do requests for it; and a session has one node."""
    with serve_proxy([node.url for node in nodes], strategy="random") as proxy:
        first = proxy.post("/v1/responses", input="x").json()
        home, response = first["node"], first["id"]
        for _ in range(8):
            assert proxy.post("/v1/responses", input="y", previous_response_id=response).json()["node"] == home
            assert httpx.get(f"{proxy.url}/v1/responses/{response}").json()["node"] == home
            assert httpx.get(f"{proxy.url}/v1/files/{first['output_file_id']}/content").json()["node"] == home
        assert len({proxy.post("/v1/chat/interactive", session_id=7).json()["node"] for _ in range(8)}) == 1


def test_operators_routes_go_to_all(nodes: list[EchoProcess]) -> None:
    before = [httpx.get(f"{node.url}/counts").json()["requests"] for node in nodes]
    with serve_proxy([node.url for node in nodes]) as proxy:
        assert httpx.post(f"{proxy.url}/reset_caches").status_code == 200
    after = [httpx.get(f"{node.url}/counts").json()["requests"] for node in nodes]
    assert [new - old for new, old in zip(after, before)] == [1, 1, 1, 1]


async def test_same_picture_same_node(nodes: list[EchoProcess]) -> None:
    """Equal pictures meet; when their node has too much to do, the next one helps, and no node is drowned."""
    with serve_proxy([node.url for node in nodes]) as proxy:
        async with httpx.AsyncClient(base_url=proxy.url, timeout=300) as client:

            async def ask(index: int, question: str = "?", **more: object) -> str:
                picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{index:04}"}}
                body = {
                    "messages": [{"role": "user", "content": [picture, {"type": "text", "text": question}]}],
                    **more,
                }
                node: str = (await client.post("/v1/chat/completions", json=body)).json()["node"]
                return node

            homes = [{await ask(index) for _ in range(3)} for index in range(12)]
            assert all(len(home) == 1 for home in homes) and len(set.union(*homes)) > 1
            asking = [asyncio.create_task(ask(0, f"{number}?", wait_s=3600)) for number in range(24)]
            await until(lambda: sum(node.num_running for node in proxy.nodes) == 24)
            running = {name: node.num_running for name, node in zip("abcd", proxy.nodes)}
            assert running[homes[0].pop()] == max(running.values()) <= 8
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


def test_add_and_remove_under_load(nodes: list[EchoProcess]) -> None:
    """No request fails while nodes come and go: those that were begun end where they are."""
    stop = threading.Event()
    with serve_proxy([nodes[0].url], strategy="random") as proxy:

        def ask() -> list[int]:
            statuses = []
            with httpx.Client(timeout=60) as client:
                while not stop.is_set():
                    statuses.append(client.post(f"{proxy.url}/x", json={"wait_s": 0.01}).status_code)
            return statuses

        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            asking = [threads.submit(ask) for _ in range(4)]
            for _ in range(5):
                for node in nodes[1:3]:
                    httpx.post(f"{proxy.url}/nodes/add", json={"url": node.url})
                for node in nodes[1:3]:
                    httpx.post(f"{proxy.url}/nodes/remove", params={"node_url": node.url})
            stop.set()
            assert {status for future in asking for status in future.result()} == {200}


def test_documentation(nodes: list[EchoProcess]) -> None:
    with serve_proxy([nodes[0].url]) as proxy:
        assert "swagger-ui" in httpx.get(f"{proxy.url}/").text
        paths = httpx.get(f"{proxy.url}/openapi.json").json()["paths"]
        assert {"/nodes/status", "/nodes/add", "/nodes/remove", "/nodes/terminate"} <= set(paths)


async def test_a_distributor_seldom_collects_garbage() -> None:
    """A collection that visits all modules held requests for a tenth of a second. Afterwards all is as before."""
    seen, before = [], (gc.get_threshold(), sys.getswitchinterval())

    def on_ready() -> None:
        seen.append((gc.get_freeze_count() > 10_000, gc.get_threshold()[0], sys.getswitchinterval()))
        os.kill(os.getpid(), signal.SIGTERM)

    with open_sockets("127.0.0.1", 0) as sockets:
        await serve_nodes(make_settings(), Nodes("random"), sockets=sockets, on_ready=on_ready)
    assert seen == [(True, 10_000, 1e-3)]
    assert (gc.get_threshold(), sys.getswitchinterval()) == before and not gc.get_freeze_count()

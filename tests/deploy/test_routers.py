"""Routers of other projects in front of our servers: each that is on the PATH distributes requests by our files."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from helm_chart import render
from live_server import LiveServer, make_settings, serve
from ports import find_port
from shell_lines import read_text
from waiting import wait_until

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine

ROUTERS = Path(__file__).parents[2] / "deploy" / "routers"
BODY = {"model": "seesay-demo", "messages": [{"role": "user", "content": "Calculate 3 + 4."}], "max_tokens": 24}
COMMANDS: dict[str, Callable[[str, str, int], list[str]]] = {
    "nginx": lambda command, path, port: [
        *(command, "-c", path, "-g", f"daemon off; pid {path}.pid; error_log stderr;"),  # it removes this file
    ],
    "envoy": lambda command, path, port: [command, "--config-path", path, "--disable-hot-restart"],
    "litellm": lambda command, path, port: [command, "--config", path, "--port", str(port), "--host", "127.0.0.1"],
    "vllm-router": lambda command, path, port: [
        *(command, "--worker-urls", "http://127.0.0.1:23333", "http://127.0.0.1:23334"),
        *("--policy", "cache_aware", "--host", "127.0.0.1", "--port", str(port)),
    ],
}
FILES = {"nginx": "nginx.conf", "envoy": "envoy.yaml", "litellm": "litellm.yaml"}


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncEngine]:
    with AsyncEngine(backend_config=EngineConfig(device_type="cpu", session_len=1024)) as engine:
        yield engine


@contextlib.contextmanager
def running(name: str, servers: list[LiveServer], folder: Path) -> Iterator[str]:
    """The router in front of the servers, by our file with other ports. Yields its URL."""
    command, port = shutil.which(name) or pytest.skip(f"{name} is not here"), find_port()
    words = COMMANDS[name](command, str(folder / FILES.get(name, "")), port)
    ports = {"23333": str(servers[0].port), "23334": str(servers[1].port), "8000": str(port)}
    for old, new in ports.items():
        words = [word.replace(f":{old}", f":{new}") for word in words]
    if name in FILES:
        text = read_text(ROUTERS / FILES[name])
        for old, new in ports.items():
            text = text.replace(old, new)
        (folder / FILES[name]).write_text(text)
    with (folder / "log").open("w") as log, subprocess.Popen(words, cwd=folder, stdout=log, stderr=log) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            wait_until(lambda: process.poll() is not None or is_answering(url), "the router answers")
            assert process.poll() is None, (folder / "log").read_text()
            yield url
        finally:
            process.terminate()


def is_answering(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.post(f"{url}/v1/chat/completions", json=BODY, timeout=60).status_code == 200
    return False


def test_nginx_takes_bodies_that_servers_take() -> None:
    settings, text = make_settings(), read_text(ROUTERS / "nginx.conf")
    limits = [int(number) << 20 for number in re.findall(r"client_max_body_size (\d+)m;", text)]
    uploads = text.partition("location = /v1/files {")[2].partition("}")[0]
    assert limits[0] == settings.max_body_bytes and limits[1] > settings.max_file_bytes
    assert f"client_max_body_size {limits[1] >> 20}m;" in uploads and "proxy_pass" in uploads


@pytest.mark.slow
@pytest.mark.parametrize("name", list(COMMANDS))
def test_router_distributes_and_streams(name: str, engine: AsyncEngine, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        settings = [make_settings(model_name="seesay-demo", unknown_fields="ignore") for _ in range(2)]
        servers = [stack.enter_context(serve(engine, each)) for each in settings]
        url = stack.enter_context(running(name, servers, tmp_path))
        for _ in range(6):
            answer = httpx.post(f"{url}/v1/chat/completions", json=BODY, timeout=120)
            assert answer.json()["choices"][0]["message"]["content"] == "3 + 4 = 7."
        with httpx.stream("POST", f"{url}/v1/chat/completions", json={**BODY, "stream": True}, timeout=120) as stream:
            pieces = [piece for piece in stream.iter_raw() if b"content" in piece]
        assert len(pieces) > 2, "the stream comes in pieces"


def read_documents(name: str) -> dict[str, Any]:
    return {document["kind"]: document for document in yaml.safe_load_all(read_text(ROUTERS / name))}


def test_pool_selects_the_servers_of_the_chart() -> None:
    pool, route = (read_documents("inference_pool.yaml")[kind] for kind in ("InferencePool", "HTTPRoute"))
    servers = next(document for document in render() if document["kind"] == "StatefulSet")["spec"]["template"]
    assert pool["spec"]["selector"]["matchLabels"].items() <= servers["metadata"]["labels"].items()
    ports = {port["containerPort"] for port in servers["spec"]["containers"][0]["ports"]}
    assert {port["number"] for port in pool["spec"]["targetPorts"]} == ports
    (backend,) = route["spec"]["rules"][0]["backendRefs"]
    assert (backend["kind"], backend["name"]) == (pool["kind"], pool["metadata"]["name"])


def test_gateway_sends_to_the_service_of_the_chart() -> None:
    documents = read_documents("envoy_ai_gateway.yaml")
    (endpoint,) = documents["Backend"]["spec"]["endpoints"]
    services = {
        document["metadata"]["name"]: document for document in render(name="seesay") if document["kind"] == "Service"
    }
    service = services[endpoint["fqdn"]["hostname"].partition(".")[0]]
    assert service["spec"]["ports"][0]["port"] == endpoint["fqdn"]["port"]
    assert documents["AIServiceBackend"]["spec"]["backendRef"]["name"] == documents["Backend"]["metadata"]["name"]
    (named,) = documents["AIGatewayRoute"]["spec"]["rules"][0]["backendRefs"]
    assert named["name"] == documents["AIServiceBackend"]["metadata"]["name"]

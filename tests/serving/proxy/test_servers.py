"""Real servers with the built-in model: behind a distributor at which they register, and as replicas of one server."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from live_server import ask_about, make_data_url
from waiting import wait_until

from seesay.config import EngineConfig, VisionConfig
from seesay.engine.process.remote.silence_watch import BEAT_S
from seesay.errors import ConfigError
from seesay.serving.replicas import divide_devices
from seesay.serving.settings import ServerSettings

FAST = ["--device", "cpu", "--session-len", "1024", "--server-name", "127.0.0.1"]
ENVIRONMENT = {"SEESAY_ADMIN_KEYS": "admin", "SEESAY_PROXY_KEY": "admin", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Command:
    """A running command that listens at `url`."""

    url: str
    process: subprocess.Popen[bytes]

    def status(self) -> dict[str, dict[str, object]]:
        with contextlib.suppress(httpx.HTTPError):
            found: dict[str, dict[str, object]] = httpx.get(f"{self.url}/nodes/status", timeout=60).json()
            return found
        return {}


@contextlib.contextmanager
def running(port: int, *words: str) -> Iterator[Command]:
    process = subprocess.Popen(
        [sys.executable, "-m", "seesay", "serve", *words, "--server-port", str(port)],
        env={**os.environ, **ENVIRONMENT},
    )
    try:
        yield Command(f"http://127.0.0.1:{port}", process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def proxy(unused_tcp_port_factory: Callable[[], int]) -> Iterator[Command]:
    """A distributor, and two servers that have registered at it."""
    words = [*FAST, "--proxy-url"]
    with (
        running(unused_tcp_port_factory(), "proxy", "--server-name", "127.0.0.1") as proxy,
        contextlib.ExitStack() as stack,
    ):
        servers = [
            stack.enter_context(running(unused_tcp_port_factory(), "api_server", *words, proxy.url, *more))
            for more in ((), ("--frontends", "2"))
        ]
        wait_until(lambda: set(proxy.status()) == {server.url for server in servers})
        yield proxy
        answer = httpx.post(
            f"{proxy.url}/nodes/terminate", json={"url": servers[1].url}, headers={"x-api-key": "admin"}, timeout=60
        )
        assert answer.status_code == 200 and servers[1].process.wait(60) == 0
        stack.close()
        assert proxy.status() == {}  # it took itself out


@pytest.fixture(scope="module")
def replicas(unused_tcp_port_factory: Callable[[], int]) -> Iterator[Command]:
    with running(unused_tcp_port_factory(), "api_server", "--dp", "2", *FAST) as replicas:
        wait_until(lambda: len(replicas.status()) == 2)
        yield replicas


def test_openai_client(proxy: Command) -> None:
    """Answers, streams, pictures and errors are those of a server."""
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="k", timeout=120) as client:
        assert [model.id for model in client.models.list()] == ["seesay-demo"]
        messages: Any = ask_about("What can you do?", make_data_url(seed=1))
        whole = client.chat.completions.create(model="seesay-demo", messages=messages, max_tokens=12, temperature=0)
        stream: Any = client.chat.completions.create(
            model="seesay-demo", messages=messages, max_tokens=12, temperature=0, stream=True
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == whole.choices[0].message.content != ""
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.chat.completions.create(model="other", messages=messages)
        first = client.responses.create(model="seesay-demo", input="Say it.", max_output_tokens=4)
        again = client.responses.create(
            model="seesay-demo", input="Again.", previous_response_id=first.id, max_output_tokens=4
        )
        assert again.previous_response_id == first.id and client.responses.retrieve(first.id).id == first.id


def test_streams_in_the_background_are_resumed(proxy: Command) -> None:
    """At the node that computes them, however often the client comes back."""
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="k", timeout=120) as client:
        options: Any = {"model": "seesay-demo", "max_output_tokens": 60, "extra_body": {"ignore_eos": True}}
        for number in range(4):  # several nodes have some
            stream = client.responses.create(input=f"Tell {number}.", background=True, stream=True, **options)
            events: list[Any] = [next(stream) for _ in range(3)]
            stream.close()
            response_id = events[0].response.id
            events += client.responses.retrieve(response_id, stream=True, starting_after=events[-1].sequence_number)
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert events[-1].type in ("response.completed", "response.incomplete")
            assert client.responses.retrieve(response_id).output_text == events[-1].response.output_text != ""


def test_anthropic_client(proxy: Command) -> None:
    """Answers, streams, counts and errors of Anthropic's API, too."""
    with anthropic.Anthropic(base_url=proxy.url, api_key="k", max_retries=0, timeout=120) as client:
        data = make_data_url(seed=2).partition(",")[2]
        picture: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
        messages: Any = [{"role": "user", "content": [picture, {"type": "text", "text": "What is it?"}]}]
        asked: Any = {"model": "seesay-demo", "messages": messages, "max_tokens": 12, "extra_body": {"temperature": 0}}
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            text = "".join(stream.text_stream)
            assert stream.get_final_message().usage.output_tokens == whole.usage.output_tokens
        assert whole.content[0].type == "text" and text == whole.content[0].text != ""
        counted = client.messages.count_tokens(model="seesay-demo", messages=messages)
        assert counted.input_tokens == whole.usage.input_tokens
        with pytest.raises(anthropic.NotFoundError, match="does not exist"):
            client.messages.create(**{**asked, "model": "other"})
        assert [model.id for model in client.models.list()] == ["seesay-demo"]


def test_pictures_meet_their_cache(proxy: Command) -> None:
    """Each picture is encoded once, although it is asked about four times."""

    def encoded() -> int:
        pages = [httpx.get(f"{url}/metrics", timeout=60).text for url in proxy.status()]
        rows = [row for page in pages for row in page.splitlines() if row.startswith("seesay_encoder_items_total ")]
        return sum(int(float(row.rpartition(" ")[2])) for row in rows)

    def settled() -> int:
        """The counts, when a server's frontends have heard of all that others of them have asked."""
        time.sleep(3 * BEAT_S)
        return encoded()

    before = settled()
    for question in ("What?", "Which?", "How many?", "Where?"):
        for seed in range(100, 106):
            body = {"messages": ask_about(make_data_url(seed=seed), question), "max_tokens": 1}
            assert httpx.post(f"{proxy.url}/v1/chat/completions", json=body, timeout=120).status_code == 200
    wait_until(lambda: encoded() - before >= 6)
    assert settled() - before == 6


def test_metrics_of_replicas(replicas: Command) -> None:
    """One page: the distributor's, and each replica's with its label, also under vLLM's names."""
    for index in range(4):
        body = {"prompt": f"{index} is a number", "max_tokens": 2}
        assert httpx.post(f"{replicas.url}/v1/completions", json=body, timeout=120).status_code == 200
    page = httpx.get(f"{replicas.url}/metrics", timeout=60).text
    for name in ("vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:prefix_cache_queries_total"):
        assert page.count(f"# TYPE {name} ") == 1
        assert {f'{name}{{replica="replica-{index}"}}' for index in (0, 1)} <= {
            row.rpartition(" ")[0] for row in page.splitlines()
        }
    assert "seesay_proxy_added_seconds_count" in page and 'seesay_prompt_tokens_total{replica="replica-0"}' in page


def test_replica_dies(replicas: Command) -> None:
    """Its requests that were not begun are answered by the other one, and it comes back under its name."""
    before = replicas.status()
    victim = find_child(replicas.process.pid, str(before["replica-0"]["url"]))

    def ask(index: int) -> int:
        body = {"prompt": f"{index} is a number", "max_tokens": 60, "ignore_eos": True}
        return httpx.post(f"{replicas.url}/v1/completions", json=body, timeout=120).status_code

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        asking = [threads.submit(ask, index) for index in range(8)]
        wait_until(lambda: any(node["unfinished"] for node in replicas.status().values()))
        os.kill(victim, signal.SIGKILL)
        assert [future.result() for future in asking] == [200] * 8
    wait_until(lambda: replicas.status().get("replica-0", before["replica-0"])["url"] != before["replica-0"]["url"])
    assert set(replicas.status()) == {"replica-0", "replica-1"}


def find_child(parent: int, url: str) -> int:
    """The child of a process that listens at `url`."""
    port = int(url.rpartition(":")[2])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    [inode] = [row[9] for row in rows if row[3] == "0A" and int(row[1].partition(":")[2], 16) == port]
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if f"socket:[{inode}]" in [str(link.readlink()) for link in Path(f"/proc/{child}/fd").iterdir()]:
            return int(child)
    raise AssertionError(f"no child of {parent} listens at {url}")


def test_server_that_cannot_start(unused_tcp_port_factory: Callable[[], int]) -> None:
    """The error of a replica is that of the server."""
    words = ["api_server", "/no/such/model", "--dp", "2", *FAST, "--server-port", str(unused_tcp_port_factory())]
    command = [sys.executable, "-m", "seesay", "serve", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0 and "/no/such/model" in done.stderr and "Traceback" not in done.stderr


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replica sees its GPUs alone; on the CPU each has its share of the cores."""

    def divide(count: int, tp: int = 1, device: str = "auto", vision: str | None = None, devices: str = "[]") -> object:
        settings = ServerSettings(num_replicas=count, devices=tuple(json.loads(devices)))
        backend = EngineConfig(device_type=device, tp=tp)
        return divide_devices(settings, backend, VisionConfig(device=vision))

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert divide(2) == [{"CUDA_VISIBLE_DEVICES": "4"}, {"CUDA_VISIBLE_DEVICES": "5"}]
    assert divide(2, tp=2) == [{"CUDA_VISIBLE_DEVICES": "4,5"}, {"CUDA_VISIBLE_DEVICES": "6,7"}]
    assert divide(2, devices="[1, 0]") == [{"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": "0"}]
    pairs = [{"CUDA_VISIBLE_DEVICES": "4,5"}, {"CUDA_VISIBLE_DEVICES": "6,7"}]
    assert divide(2, vision="cuda:1") == pairs, "a replica's encoder is on its own second one"
    assert divide(2, vision="cpu") == divide(2, vision="cuda:0") == divide(2)
    refused = [(5, 1, "auto", None), (3, 2, "auto", None), (2, 1, "cuda:1", None), (3, 1, "cuda", "cuda:1")]
    refused += [(2, 1, "npu", None), (2, 1, "xpu", None)]  # they know nothing of CUDA_VISIBLE_DEVICES
    for count, tp, device, vision in refused:
        with pytest.raises(ConfigError, match="--dp"):
            divide(count, tp, device, vision)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert divide(3, device="cpu") == [{"OMP_NUM_THREADS": "2"}] * 3

"""`seesay.serve()`: a server in a process of its own, with the built-in checkpoint: its answers are right."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anthropic
import httpx
import numpy as np
import openai
import pytest
from live_server import make_settings, serve, wait_until

import seesay
from seesay.checkpoint import resolve_checkpoint
from seesay.cli import make_parser
from seesay.commands.serve.serve_server import make_settings as make_cli_settings
from seesay.config import MediaLimits
from seesay.demo.scenes import Example, sample_scene
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import CheckpointError, ConfigError
from seesay.model import MODELS, BaseChatTemplate
from seesay.serving.app import create_app
from seesay.serving.client import APIError
from seesay.serving.http.listener import open_sockets, port_of, shown_host, url_host
from seesay.serving.launch import ServerProcess, _trust_only
from seesay.serving.server import DrainingServer

GUIDE = Path(__file__).parents[2] / "docs" / "clients.md"

pytestmark = pytest.mark.skipif(
    not (resolve_checkpoint("seesay-demo") / "config.json").is_file(), reason="the built-in checkpoint is not here"
)


@pytest.fixture(scope="module")
def client() -> Iterator[ServerProcess]:
    config = seesay.EngineConfig(session_len=1024, device_type="cpu")
    with seesay.serve(server_name="127.0.0.1", server_port=0, api_keys="key", backend_config=config) as client:
        yield client


@pytest.fixture(scope="module")
def scene() -> Example:
    return sample_scene(0)


def encode(scene: Example) -> str:
    file = io.BytesIO()
    scene.images[0].save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def test_the_client_of_it(client: ServerProcess, scene: Example) -> None:
    (model,) = client.available_models
    assert model == "seesay-demo"
    (answer,) = client.chat_completions_v1(model, "Calculate 3 + 4.", temperature=0)
    assert "7" in answer["choices"][0]["message"]["content"]
    question, expected = scene.turns[0]
    parts = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encode(scene)}"}},
        {"type": "text", "text": question},
    ]
    chunks = client.chat_completions_v1(model, [{"role": "user", "content": parts}], temperature=0, stream=True)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == expected


def test_a_session_about_a_picture(client: ServerProcess, scene: Example) -> None:
    url = f"data:image/png;base64,{encode(scene)}"
    for (question, expected), image in zip(scene.turns[:2], (url, None)):
        ((text, _, reason),) = client.chat(question, 1, image_url=image, temperature=0)
        assert (text, reason) == (expected, "stop")


def text_of(message: anthropic.types.Message) -> str:
    block = message.content[0]
    assert block.type == "text"
    return block.text


def test_anthropic_sync_and_streaming(client: ServerProcess, scene: Example) -> None:
    with anthropic.Anthropic(base_url=client.api_server_url, api_key="key", max_retries=0) as claude:
        ask_about_the_scene(claude, scene)


def ask_about_the_scene(claude: anthropic.Anthropic, scene: Example) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": encode(scene)}
    question, expected = scene.turns[0]
    messages: list[Any]
    messages = [{"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": question}]}]
    message = claude.messages.create(model="seesay-demo", max_tokens=100, messages=messages)
    assert text_of(message) == expected and message.stop_reason == "end_turn"
    (follow_up, second) = scene.turns[1]
    messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": follow_up}]
    with claude.messages.stream(model="seesay-demo", max_tokens=100, messages=messages) as stream:
        assert stream.get_final_text() == second


async def test_anthropic_async(client: ServerProcess) -> None:
    async with anthropic.AsyncAnthropic(base_url=client.api_server_url, api_key="key", max_retries=0) as claude:
        messages: list[Any] = [{"role": "user", "content": "Calculate 2 + 6."}]
        message = await claude.messages.create(model="seesay-demo", max_tokens=100, messages=messages)
    assert "8" in text_of(message)


def test_keys_are_in_no_list_of_processes(client: ServerProcess) -> None:
    assert b"key" not in Path(f"/proc/{client.pid}/cmdline").read_bytes().replace(b"seesay.serving", b"")
    with (
        openai.OpenAI(base_url=f"{client.api_server_url}/v1", api_key="other", max_retries=0) as other,
        pytest.raises(openai.AuthenticationError),
    ):
        other.models.list()


@pytest.mark.parametrize(("language", "count"), [("python", 3), ("bash", 6)])
def test_the_examples_of_the_guide_run(
    client: ServerProcess,
    scene: Example,
    language: str,
    count: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    scene.images[0].save(tmp_path / "scene.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEESAY_API_KEY", "key")
    text = GUIDE.read_text(encoding="utf-8").replace("http://localhost:23333", client.api_server_url)
    blocks = re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.M)
    assert len(blocks) == count
    for number, block in enumerate(blocks):
        if language == "python" and number == 0:
            continue  # what this module does already
        if language == "python":
            exec(compile(block.replace('"none"', '"key"'), f"clients.md, example {number}", "exec"), {})
        else:
            script = block.replace("curl -s", "curl --fail -s -H 'x-api-key: key'")
            subprocess.run(["bash", "-euc", script], check=True, timeout=60)
    shown = capfd.readouterr().out
    for expected in {"python": ("8 + 9 = 17.", "2 + 2 = 4.", scene.turns[0][1]), "bash": ("3 + 4 = 7.", "output_ids")}[
        language
    ]:
        assert expected in shown


def test_closing_ends_it(client: ServerProcess) -> None:
    """The last test of this module: the server is gone afterwards."""
    client.close()
    assert client._process.returncode == 0
    client.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{client.api_server_url}/health", timeout=60)


def test_what_cannot_start_says_why() -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        seesay.serve("/no/such/model", server_name="127.0.0.1", server_port=0)
    with pytest.raises(ConfigError, match="unknown option 'colour'"):
        seesay.serve(colour="red")
    with pytest.raises(ConfigError, match="max_queue"):
        seesay.serve(max_queue=-1)
    with pytest.raises(ConfigError, match="SSL_CERTFILE"):
        seesay.serve(ssl=True)
    with pytest.raises(ConfigError, match="backend"):
        seesay.serve(backend="other")  # type: ignore[arg-type]


def test_addresses_are_shown_as_in_urls() -> None:
    shown = [shown_host(host) for host in ("::", "::1", "0.0.0.0", "", "a.example")]
    assert shown == ["[::]", "[::1]", "0.0.0.0", "0.0.0.0", "a.example"]


def test_a_port_that_another_server_has_is_refused(engine: AsyncEngine) -> None:
    """At once, and not answered with a client of that server."""
    with serve(engine) as other, pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{other.port}"):
        seesay.serve("/no/such/model", server_name="127.0.0.1", server_port=other.port)
    with pytest.raises(ConfigError, match=r"cannot listen on 'no\.such\.host\.invalid'"):
        seesay.serve("/no/such/model", server_name="no.such.host.invalid")


def test_a_port_that_is_taken_while_the_model_loads(engine: AsyncEngine) -> None:
    settings = make_settings()
    ready: list[bool] = []
    with open_sockets("127.0.0.1", 0) as sockets, socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(sockets[0].getsockname())
        thief.listen()
        server = DrainingServer.make(create_app(engine, settings), settings, on_ready=lambda: ready.append(True))
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port_of(sockets)}"):
            asyncio.run(server._serve(sockets))
    assert not ready


def test_every_address_of_a_host_is_listened_on() -> None:
    with open_sockets("", 0) as sockets:
        assert len({sock.getsockname()[1] for sock in sockets}) == 1 and port_of(sockets) > 0
        assert {sock.family for sock in sockets} <= {socket.AF_INET, socket.AF_INET6}


@pytest.mark.parametrize(
    ("host", "expected"),
    [("", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("localhost", "localhost")],
)
def test_the_client_asks_an_address_that_the_server_listens_on(host: str, expected: str) -> None:
    """IPv4's port of the same number may belong to another server."""
    if ":" in host and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6")
    with open_sockets(host, 0) as sockets:
        assert url_host(host, sockets) == expected
        if host == "::":
            assert {sock.family for sock in sockets} == {socket.AF_INET6}


def test_options_of_every_type_reach_the_process(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    template = tmp_path / "vicuna.json"
    template.write_text(seesay.ChatTemplateConfig("vicuna").to_json())
    with seesay.serve(
        tiny_checkpoint("qwen2_5_vl"),
        server_name="127.0.0.1",
        server_port=np.int64(0),  # type: ignore[arg-type]
        backend_config=seesay.EngineConfig(
            session_len=np.int64(256),  # type: ignore[arg-type]
            device_type="cpu",
            download_dir=tmp_path,
            cache_max_entry_count=np.float32(0.5),  # type: ignore[arg-type]
            hf_overrides=MappingProxyType(
                {"text_config": {"rms_norm_eps": np.float32(1e-6), "id2label": {0: (1, [Path("b")])}}}
            ),
        ),
        vision_config=seesay.VisionConfig(max_batch_size=np.int32(2)),  # type: ignore[arg-type]
        chat_template_config=template,
        media_limits=MediaLimits.for_server(allowed_local_media_path=tmp_path, allowed_media_domains=["a.example"]),
        cors_origins=["https://a.example"],
        max_queue=np.int64(3),
        api_keys=["key"],
    ) as client:
        prompt = client.decode(client.encode("hello", do_preprocess=True)[0])
        assert prompt.endswith("USER: hello ASSISTANT:")
        headers = {"Origin": "https://a.example", "Access-Control-Request-Method": "DELETE"}
        allowed = httpx.options(f"{client.api_server_url}/v1/responses/x", headers=headers, timeout=60)
        assert allowed.status_code == 200 and "DELETE" in allowed.headers["access-control-allow-methods"]
    with pytest.raises(ConfigError, match=r"hf_overrides.dtype=<object"):
        seesay.serve(server_port=0, backend_config=seesay.EngineConfig(hf_overrides={"dtype": object()}))
    with pytest.raises(TypeError, match="backend_config must be EngineConfig"):
        seesay.serve(server_port=0, backend_config={"session_len": 3})  # type: ignore[arg-type]


@pytest.mark.usefixtures("forget_templates")
def test_a_template_that_was_registered_here_reaches_the_process(tiny_checkpoint: Callable[[str], Path]) -> None:
    @MODELS.register_module(name="robot")
    class Robot(BaseChatTemplate):
        def __init__(self) -> None:
            super().__init__(user="HUMAN: ", eoh=" ", assistant="ROBOT: ", stop_words=["HUMAN"])

    config = seesay.EngineConfig(session_len=256, device_type="cpu")
    with seesay.serve(
        tiny_checkpoint("qwen2"), server_port=0, backend_config=config, chat_template_config="robot"
    ) as client:
        prompt = client.decode(client.encode("hello", do_preprocess=True)[0])
        assert prompt == "HUMAN: hello ROBOT: "


def test_it_ends_with_whoever_started_it() -> None:
    code = (
        "import os, seesay.serving.child as child, threading, time\n"
        "threading.Thread(target=child._end_with_parent, daemon=True).start()\n"
        "print('up', flush=True); time.sleep(30)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdout.readline()
    process.stdin.close()
    assert process.wait(60) == -signal.SIGTERM
    process.stdout.close()


def test_https_with_a_certificate_of_our_own(
    engine: AsyncEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=example.com"]
    subprocess.run(
        ["openssl", *words, "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=30
    )
    settings = make_settings(ssl_certfile=certificate, ssl_keyfile=key)
    with serve(engine, settings) as server:
        url = server.url.replace("http:", "https:")
        with seesay.client(url, verify=_trust_only(certificate)) as client:
            assert client.is_healthy()
        with seesay.client(url) as stranger, pytest.raises(APIError, match=r"(?i)certificate"):
            stranger.version()
    with pytest.raises(ConfigError, match="ssl_certfile"):
        _trust_only(str(tmp_path / "none.pem"))
    monkeypatch.setenv("SSL_CERTFILE", certificate)
    monkeypatch.setenv("SSL_KEYFILE", key)
    arguments = make_parser().parse_args(["serve", "api_server", "--ssl"])
    assert make_cli_settings(arguments).ssl_keyfile == key


def test_client_by_url(client: ServerProcess) -> None:
    with seesay.client("localhost:1", timeout_s=1) as other:
        assert other.api_server_url == "http://localhost:1"
    assert os.getpid() != client.pid


def test_ctrl_c_twice_cuts_answers_off_and_says_so_in_a_line(unused_tcp_port: int) -> None:
    command = [sys.executable, "-m", "seesay", "serve", "api_server", "--device", "cpu"]
    command += ["--server-name", "127.0.0.1", "--server-port", str(unused_tcp_port)]
    body = {"prompt": "go on", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert any("ready after" in line for line in iter(process.stderr.readline, ""))
            url = f"http://127.0.0.1:{unused_tcp_port}/v1/completions"
            with httpx.stream("POST", url, json=body, timeout=60) as response:
                lines = response.iter_lines()
                assert response.status_code == 200 and next(lines)
                process.send_signal(signal.SIGINT)
                wait_until(lambda: httpx.get(f"http://127.0.0.1:{unused_tcp_port}/health").status_code == 503)
                process.send_signal(signal.SIGINT)
                log = process.stderr.read()
            assert process.wait(60) == 0, log
        finally:
            process.kill()
    first, second = log.splitlines()
    assert first.endswith("SIGINT: waiting up to 30 s for running answers; a second one (Ctrl-C) cuts them off")
    assert second.endswith("SIGINT again: 1 requests are cut off")

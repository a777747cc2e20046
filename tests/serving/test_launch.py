"""`seesay.serve()`: a server in a process of its own, with the built-in checkpoint: its answers are right."""

from __future__ import annotations

import base64
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx
import openai
import pytest
from live_server import make_settings, serve

import seesay
from seesay.checkpoint import resolve_checkpoint
from seesay.cli import make_parser
from seesay.commands.serve_server import make_settings as make_cli_settings
from seesay.demo.scenes import Example, sample_scene
from seesay.engine import AsyncEngine
from seesay.errors import CheckpointError, ConfigError
from seesay.serving.client import APIError
from seesay.serving.launch import ServerProcess, _trust_only

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


def test_the_client_of_it(client: ServerProcess, scene: Example):
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


def test_a_session_about_a_picture(client: ServerProcess, scene: Example):
    url = f"data:image/png;base64,{encode(scene)}"
    for (question, expected), image in zip(scene.turns[:2], (url, None)):
        ((text, _, reason),) = client.chat(question, 1, image_url=image, temperature=0)
        assert (text, reason) == (expected, "stop")


def test_anthropic_sync_and_streaming(client: ServerProcess, scene: Example):
    claude = anthropic.Anthropic(base_url=client.api_server_url, api_key="key", max_retries=0)
    source = {"type": "base64", "media_type": "image/png", "data": encode(scene)}
    question, expected = scene.turns[0]
    messages = [{"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": question}]}]
    message = claude.messages.create(model="seesay-demo", max_tokens=100, messages=messages)
    assert message.content[0].text == expected and message.stop_reason == "end_turn"
    (follow_up, second) = scene.turns[1]
    messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": follow_up}]
    with claude.messages.stream(model="seesay-demo", max_tokens=100, messages=messages) as stream:
        assert stream.get_final_text() == second


async def test_anthropic_async(client: ServerProcess):
    async with anthropic.AsyncAnthropic(base_url=client.api_server_url, api_key="key", max_retries=0) as claude:
        messages = [{"role": "user", "content": "Calculate 2 + 6."}]
        message = await claude.messages.create(model="seesay-demo", max_tokens=100, messages=messages)
    assert "8" in message.content[0].text


def test_keys_are_in_no_list_of_processes(client: ServerProcess):
    assert b"key" not in Path(f"/proc/{client.pid}/cmdline").read_bytes().replace(b"seesay.serving", b"")
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{client.api_server_url}/v1", api_key="other", max_retries=0).models.list()


@pytest.mark.parametrize(("language", "count"), [("python", 3), ("bash", 2)])
def test_the_examples_of_the_guide_run(
    client: ServerProcess,
    scene: Example,
    language: str,
    count: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
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


def test_closing_ends_it(client: ServerProcess):
    """The last test of this module: the server is gone afterwards."""
    client.close()
    assert client._process.returncode == 0
    client.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{client.api_server_url}/health")


def test_what_cannot_start_says_why():
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


def test_it_ends_with_whoever_started_it():
    code = (
        "import os, seesay.serving.child as child, threading, time\n"
        "threading.Thread(target=child._end_with_parent, daemon=True).start()\n"
        "print('up', flush=True); time.sleep(30)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdout.readline()
    started = time.monotonic()
    process.stdin.close()
    assert process.wait(10) == -signal.SIGTERM
    assert time.monotonic() - started < 5
    process.stdout.close()


def test_https_with_a_certificate_of_our_own(engine: AsyncEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


def test_client_by_url(client: ServerProcess):
    with seesay.client("localhost:1", timeout_s=1) as other:
        assert other.api_server_url == "http://localhost:1"
    assert os.getpid() != client.pid

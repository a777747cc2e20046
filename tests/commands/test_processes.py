"""The command as people run it: processes, pipes, a terminal, Ctrl-C. The model is tiny and random."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image

SEESAY = [sys.executable, "-m", "seesay"]
FAST = ["--device", "cpu", "--session-len", "512"]


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Callable[[str], Path]) -> str:
    return str(tiny_checkpoint("qwen2_5_vl"))


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "red.png"
    Image.new("RGB", (40, 30), "red").save(path)
    return path


@pytest.fixture(scope="module")
def server(model: str, unused_tcp_port_factory: Callable[[], int]) -> Iterator[str]:
    """The address of a server that the command started; it is told to end gracefully."""
    port = unused_tcp_port_factory()
    words = ["serve", "api_server", model, "--server-name", "127.0.0.1", "--server-port", str(port), *FAST]
    process = subprocess.Popen(
        [*SEESAY, *words, "--model-name", "tiny"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SEESAY_API_KEYS": "k"},
    )
    try:
        while True:  # the test's own limit ends it where the server never comes
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{port}/health", timeout=60).status_code == 200:
                    break
            assert process.poll() is None
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0
        assert re.search(r"ready after .* serving http://127.0.0.1:\d+", log) and "Traceback" not in log
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        assert process.stderr is not None
        process.stderr.close()


@pytest.mark.parametrize(
    ("words", "is_warned"),
    [
        ("serve api_server --server-name 0.0.0.0", True),
        pytest.param("serve api_server --server-name 0.0.0.0 --api-keys k", False, marks=pytest.mark.slow),
        pytest.param("serve gradio --server-name 0.0.0.0", True, marks=pytest.mark.slow),
    ],
)
def test_strangers_are_warned_of_when_the_server_is_ready(words: str, is_warned: bool, model: str) -> None:
    command = [*SEESAY, *words.split(), model, "--server-port", "0", *FAST]
    lines = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                lines.append(line)
                if "Ctrl-C" in line:
                    break
            if is_warned:
                lines.append(process.stderr.readline())
        finally:
            process.kill()
    assert not any("warning" in line for line in lines[:-1])
    assert lines[-1].startswith("seesay: warning: the ") == is_warned
    assert ("at 0.0.0.0 requires no key" in lines[-1]) == is_warned


def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SEESAY_API_KEY": "k"}
    return subprocess.run(
        [*SEESAY, *words], input=stdin, capture_output=True, text=True, timeout=60, env=environment, check=False
    )


def test_client_over_a_pipe(server: str, picture: Path, tmp_path: Path) -> None:
    lines = ["hello", f"/image {picture}", "what?", f"/save {tmp_path}/c.json", "/undo", "again?", "/image /no.png"]
    done = run("serve", "api_client", server, "--max-new-tokens", "4", stdin="\n".join(lines))
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 3
    assert "cannot read '/no.png'" in done.stderr and "Traceback" not in done.stderr
    assert (tmp_path / "c.json").read_text().count('"role": "user"') == 2


def test_one_question(server: str, picture: Path) -> None:
    words = ("serve", "api_client", server, "--max-new-tokens", "4", "--image", str(picture))
    asked = run(*words, "--prompt", "what?")
    assert asked.returncode == 0 and asked.stdout.strip()
    assert run(*words, "--prompt", "-", stdin="what?\n").stdout == asked.stdout


def test_wrong_models_and_keys(server: str) -> None:
    done = run("serve", "api_client", server, "--model", "other")
    assert (done.returncode, done.stderr) == (1, "seesay: error: --model must be one of tiny, got 'other'\n")
    done = run("serve", "api_client", server, "--api-key", "wrong")
    assert done.returncode == 1 and done.stderr == "seesay: error: the API key is not valid\n"
    done = run("serve", "api_client", server, "--api-key", "wrong", "--debug")
    assert "Traceback" in done.stderr


def test_ctrl_c_at_a_terminal_stops_the_answer_only(server: str) -> None:
    """A pseudo-terminal: Ctrl-C in the middle of a long answer, another question, Ctrl-D."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"SEESAY_API_KEY": "k", "TERM": "dumb"}
        os.execv(
            SEESAY[0], [*SEESAY, "serve", "api_client", server, "--max-new-tokens", "450", "--repetition-penalty", "5"]
        )
    shown = ""

    def wait_for(pattern: str, since: int = 0) -> None:
        nonlocal shown
        deadline = time.monotonic() + 60
        while not re.search(pattern, shown[since:]):
            assert time.monotonic() < deadline, shown
            if select.select([terminal], [], [], 0.1)[0]:
                shown += os.read(terminal, 1 << 16).decode(errors="replace")

    try:
        wait_for("you> ")
        os.write(terminal, b"go on\n")
        wait_for(r"go on\r\n.+")
        os.write(terminal, b"\x03")
        wait_for(r"(\[stopped\]|tokens/s\])[^>]*you> ")
        asked = len(shown)
        os.write(terminal, b"/undo\n")
        wait_for(r"took back: go on[^>]*you> ", asked)
        os.write(terminal, b"\x04")
        _, status = os.waitpid(pid, 0)
        pid = 0
        assert os.waitstatus_to_exitcode(status) == 0
    finally:
        os.close(terminal)
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_chat_in_one_process(model: str, picture: Path) -> None:
    done = run("chat", model, *FAST, "--max-new-tokens", "4", "--image", str(picture), stdin="what?\nand?\n")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert "loading" not in done.stderr and "%|" not in done.stderr


def test_list() -> None:
    done = run("list")
    assert done.returncode == 0
    for word in ("qwen2_5_vl", "LlamaForCausalLM", "phi3", "chatml", "seesay-demo", "image, video"):
        assert word in done.stdout


def test_check_env_tells_nothing_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    done = run("check_env")
    assert done.returncode == 0
    for word in ("seesay:", "python:", "torch", "cpu:", "gpu:", "[serve]:", "transformers"):
        assert word in done.stdout
    for secret in ("hf_very_secret", str(Path.home()), os.uname().nodename, str(Path.cwd())):
        assert secret not in done.stdout or len(secret) < 4

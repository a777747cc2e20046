"""Which heavy packages each kind of process imports: a second or three of processor time each, at every start.

Each process is asked for its modules: a `sitecustomize` module, which Python imports at its start, answers on a socket.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from seesay.checkpoint import resolve_checkpoint
from seesay.config import EngineConfig
from seesay.engine.opened_model import open_model

HEAVY = frozenset([
    "torch", "torch._dynamo", "torch._inductor", "torchvision", "triton", "sympy", "transformers", "huggingface_hub",
    "tokenizers", "safetensors", "numpy", "scipy", "sklearn", "pandas", "PIL", "jinja2", "fastapi", "uvicorn",
    "pydantic", "httpx", "gradio", "av", "decord", "ray", "timm", "llguidance",
])  # fmt: skip
PROMPT = {"numpy", "PIL", "tokenizers"}
HTTP = {"fastapi", "uvicorn", "pydantic"}
COMPUTING = {"torch", "safetensors"}
RESIZING = {"torch"}
"""Where there is no GPU, which would resize pictures in the engine's process."""
ANSWERING = """
import os, socket, sys, threading

def answer():
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.join({folder!r}, str(os.getpid())))
        server.listen()
        while True:
            asking, _ = server.accept()
            with asking:
                asking.sendall("\\n".join([" ".join(sys.orig_argv), *list(sys.modules)]).encode())

threading.Thread(target=answer, daemon=True).start()
"""
CHAT = """
import sys
from seesay import EngineConfig, pipeline
from seesay.demo import CHECKPOINT
if __name__ == "__main__":
    with pipeline("seesay-demo", EngineConfig(device_type="cpu", engine_process=sys.argv[1] == "process")) as pipe:
        assert pipe("hi").text
        pipe.update_weights(CHECKPOINT)
        print("ready", flush=True)
        sys.stdin.read()
"""


@pytest.fixture(scope="module", autouse=True)
def kept_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The built-in model has been opened before on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        open_model(resolve_checkpoint("seesay-demo"), EngineConfig())
        yield


@pytest.fixture
def folder() -> Iterator[Path]:
    """Its name is short, as those of sockets must be."""
    made = Path(tempfile.mkdtemp(prefix="seesay-", dir="/tmp"))
    (made / "sitecustomize.py").write_text(ANSWERING.format(folder=str(made)))
    yield made
    shutil.rmtree(made)


@contextmanager
def running(folder: Path, command: Sequence[str], ready: str) -> Iterator[None]:
    """Run Python with `command`. It has written `ready` inside the block, and ends behind it."""
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    process = subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None and process.stdin is not None
    try:
        lines: list[str] = []
        while not lines or ready not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], "".join(lines)
        yield
    finally:
        process.stdin.close()
        process.send_signal(signal.SIGINT)
        process.wait(60)
        process.stdout.close()


def ask(folder: Path) -> dict[str, frozenset[str]]:
    """Return the heavy packages that each kind of process has imported."""
    found: dict[str, frozenset[str]] = {}
    for path in folder.iterdir():
        if path.is_socket():
            with socket.socket(socket.AF_UNIX) as asking:
                asking.connect(str(path))
                answer = b"".join(iter(lambda: asking.recv(1 << 16), b"")).decode()
            command, *modules = answer.split("\n")
            module = re.search(r"-m (?:seesay\.engine\.process\.start )?(seesay\S*)", command)
            kind = module[1] if module else "script"
            found[kind] = HEAVY.intersection(modules) | found.get(kind, frozenset())
    return found


def test_a_script_and_its_engine_process(folder: Path) -> None:
    with running(folder, ["-c", CHAT, "process"], "ready"):
        found = ask(folder)
    assert found == {"script": PROMPT | RESIZING, "seesay.engine.process.child": PROMPT | COMPUTING}


def test_a_script_that_computes(folder: Path) -> None:
    with running(folder, ["-c", CHAT, "thread"], "ready"):
        assert ask(folder) == {"script": PROMPT | COMPUTING}


def test_a_server(folder: Path) -> None:
    options = ["--device", "cpu", "--server-name", "127.0.0.1", "--server-port", "0", "--frontends", "2"]
    with running(folder, ["-m", "seesay", "serve", "api_server", *options], "ready after"):
        found = ask(folder)
    assert found == {
        "seesay": frozenset({"numpy"}),
        "seesay.serving.frontends.process": PROMPT | RESIZING | HTTP,
        "seesay.engine.process.child": PROMPT | COMPUTING,
    }


def test_a_command_that_only_prints() -> None:
    code = "import sys; sys.argv[1:] = ['serve', 'api_server', '--help']\nfrom seesay.cli import main\ntry: main()\n"
    code += "finally: print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--frontends" in done.stdout
    assert not HEAVY.intersection(done.stderr.split())

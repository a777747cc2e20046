"""A server for a benchmark to load: `seesay serve api_server` in a process of its own, on a free port of loopback."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

START_S = 400.0
END_S = 60.0


@contextmanager
def running_server(model: str, options: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Start a server, wait until it answers, and yield its address and process id. It ends with the block. With keys in
    SEESAY_API_KEYS, the first of them asks whether it is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "seesay", "serve", "api_server", model]
    command += ["--server-name", "127.0.0.1", "--server-port", str(port), *options]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_S
        key = os.environ.get("SEESAY_API_KEYS", "").partition(",")[0]
        while not is_ready(url, key):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not start: {' '.join(command)}")
            time.sleep(0.1)
        yield url, process.pid
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_ready(url: str, key: str = "") -> bool:
    """Return whether all processes of the server answer. `key` is for a server with API keys."""
    metrics = urllib.request.Request(f"{url}/metrics", headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):
            pass
        with urllib.request.urlopen(metrics, timeout=5) as answer:
            return re.search(rb"^seesay_front_up\S* 0", answer.read(), re.MULTILINE) is None
    except OSError:  # URLError is one, also for a status that is an error
        return False


def model_name_of(url: str) -> str:
    """Return the first model that the server lists."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as answer:
        return str(json.load(answer)["data"][0]["id"])


def resident_bytes(pid: int) -> int:
    """Memory of a process and its children. One that has ended and was not waited for has none."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    total = int(found[1]) * 1024 if found else 0
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        total += sum(resident_bytes(int(child)) for child in children.read_text().split())
    return total

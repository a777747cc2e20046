"""The trial of a schema ends when the connections of all who asked for it are closed."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from held_trials import HeldTrials
from live_server import LiveServer, serve
from waiting import wait_until

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.serving.http.streaming import EventStream


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Callable[[str], Path]) -> Iterator[AsyncEngine]:
    config = EngineConfig(session_len=512, device_type="cpu", block_size=16)
    with AsyncEngine(str(tiny_checkpoint("qwen2_5_vl")), backend_config=config) as engine:
        yield engine


def make_body(text: str, *, is_streamed: bool) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], "guided_choice": [text], "stream": is_streamed}


def ask(live: LiveServer, body: dict[str, Any]) -> socket.socket:
    """Send a request on a connection of its own."""
    data = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    connection = socket.create_connection(("127.0.0.1", live.port), timeout=120)
    connection.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    return connection


@pytest.mark.parametrize("is_streamed", [False, True], ids=["complete", "streamed"])
def test_closed_connections_end_trials(
    engine: AsyncEngine, tmp_path: Path, is_streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one owner, three are tried at a time. A stream begins while its grammar is still being tried; that its client
    has closed its connection is noticed before a comment would be due."""
    monkeypatch.setattr(EventStream, "keep_alive_s", 1000.0)
    held, trials = HeldTrials(tmp_path), engine._grammars
    if trials._child is not None:
        trials._child.end()
    trials._command = held.command
    kind = "streamed" if is_streamed else "complete"
    with serve(engine) as live:
        running = [ask(live, make_body(f"held {kind} {i}", is_streamed=is_streamed)) for i in range(3)]
        wait_until(lambda: len(held.list_running()) == 3)
        joined = ask(live, make_body(f"held {kind} 0", is_streamed=is_streamed))
        queued = ask(live, make_body(f"held {kind} queued", is_streamed=is_streamed))
        if is_streamed:
            for connection in (*running, joined, queued):
                assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        wait_until(lambda: live.uvicorn.num_connections == 5 and bool(engine._preparation._grammar_threads._calls))
        queued.close()
        wait_until(lambda: live.uvicorn.num_connections == 4)
        for connection in running:
            connection.close()
        wait_until(lambda: held.list_running() == [f'["held {kind} 0"]'])

        small = live.post("/v1/chat/completions", make_body("small", is_streamed=False))
        assert small.json()["choices"][0]["message"]["content"] == "small"
        joined.close()
        wait_until(lambda: not held.list_running())
        assert not any("queued" in source for source in held.list_begun())

        held.release()
        again = live.post("/v1/chat/completions", make_body(f"held {kind} 0", is_streamed=False))
        assert again.json()["choices"][0]["message"]["content"] == f"held {kind} 0"

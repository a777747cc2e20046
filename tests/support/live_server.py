"""A server in a thread of the test process, and what tests of it share."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
from PIL import Image
from waiting import until as until
from waiting import wait_until as wait_until

from seesay.engine.front.engine import AsyncEngine
from seesay.engine.front.live_answer import OutputSink
from seesay.engine.front.shared_prompts import SharedPrompts
from seesay.serving.app import create_app
from seesay.serving.requests.state import ServerState
from seesay.serving.server import DrainingServer
from seesay.serving.settings import ServerSettings
from seesay.values import GenerationRequest, OutputDelta

MODEL = "tiny"


@dataclass(frozen=True)
class LiveServer:
    """A running server: its address, its state, and the uvicorn server."""

    url: str
    state: ServerState
    uvicorn: DrainingServer

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that serves."""
        return self.uvicorn.loop

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, timeout=60, **options)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


def make_settings(**options: Any) -> ServerSettings:
    """The settings of tests: a loopback port; unknown fields are refused, so that a mistyped field fails a test."""
    own = {"model_name": MODEL, "host": "127.0.0.1", "port": 0, "unknown_fields": "refuse"}
    return ServerSettings(**{**own, **options})


@contextlib.contextmanager
def serve(engine: AsyncEngine, settings: ServerSettings | None = None) -> Iterator[LiveServer]:
    """A server on a free port of loopback, for the time of the block."""
    settings = settings or make_settings()
    app = create_app(engine, settings)
    server = DrainingServer.make(app, settings)
    sock = socket.socket(proto=socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY for these alone
    sock.bind(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 120
    while not server.started:
        assert thread.is_alive() and time.monotonic() < deadline, "the server does not start"
        time.sleep(0.01)
    try:
        yield LiveServer(f"http://127.0.0.1:{sock.getsockname()[1]}", app.state.server, server)
    finally:
        server.should_exit = True
        thread.join(60)
        sock.close()
        assert not thread.is_alive(), "the server does not end"


class HeldEngine(AsyncEngine):
    """An engine that keeps requests until they are released, or answers them by hand. In all else it is the engine
    that it is made of."""

    def __init__(self, engine: AsyncEngine) -> None:
        vars(self).update(vars(engine))
        self._held_ids = iter(range(10**9, 2 * 10**9))
        self.submitted: queue.SimpleQueue[tuple[int, GenerationRequest, Callable[[OutputDelta], None]]]
        self.submitted = queue.SimpleQueue()
        self.aborted: queue.SimpleQueue[int] = queue.SimpleQueue()

    def submit_batch(
        self, requests: Sequence[GenerationRequest], on_output: OutputSink, prompts: SharedPrompts | None = None
    ) -> list[int]:
        ids = [next(self._held_ids) for _ in requests]
        for request_id, request in zip(ids, requests):
            self.submitted.put((request_id, request, on_output))
        return ids

    def abort(self, request_id: int) -> None:
        self.aborted.put(request_id)

    def answer(self, *deltas: dict[str, Any], timeout: float = 60) -> int:
        """Answer the oldest request with these deltas."""
        request_id, _, on_output = self.submitted.get(timeout=timeout)
        for delta in deltas:
            on_output(OutputDelta(request_id=request_id, **delta))
        return request_id


def make_data_url(picture: Image.Image | None = None, *, seed: int = 0, size: tuple[int, int] = (40, 30)) -> str:
    """A PNG as a data URL."""
    if picture is None:
        noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        picture = Image.fromarray(noise)
    file = io.BytesIO()
    picture.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def ask_about(*parts: str) -> list[dict[str, Any]]:
    """A user's message of texts and data URLs."""
    content = [
        {"type": "image_url", "image_url": {"url": part}}
        if part.startswith("data:")
        else {"type": "text", "text": part}
        for part in parts
    ]
    return [{"role": "user", "content": content}]


def read_events(body: str) -> list[dict[str, Any]]:
    """The JSON of a stream's events; checks that it is framed as server-sent events, with `[DONE]` last if at all."""
    blocks = body.split("\n\n")
    assert blocks.pop() == "", "the stream ends in the middle of an event"
    lines = [line for block in blocks for line in block.split("\n")]
    assert all(line.startswith(("data: ", "event: ")) for line in lines), lines
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert "[DONE]" not in data[:-1]
    return [json.loads(line) for line in data if line != "[DONE]"]

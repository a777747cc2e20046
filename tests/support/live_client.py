"""A client of `/v1/live`: the `websockets` package, as users have it."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from typing import Any

from PIL import Image
from websockets.sync.client import ClientConnection, connect

TIMEOUT_S = 120


def encode(picture: Image.Image | str, kind: str = "JPEG", size: int = 84) -> bytes:
    """A picture as a file; a name of a colour is a picture of nothing else."""
    if isinstance(picture, str):
        picture = Image.new("RGB", (size, size), picture)
    file = io.BytesIO()
    picture.save(file, kind)
    return file.getvalue()


class LiveClient:
    """A session. What the server says is read in order, by kind."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.unread: list[dict[str, Any]] = []
        self.ready = self.wait_for("ready")

    def push(self, frame: bytes, time_s: float | None = None) -> None:
        """Send a frame."""
        if time_s is not None:
            self.say(type="frame", time_s=time_s)
        self.socket.send(frame)

    def say(self, **message: Any) -> None:
        self.socket.send(json.dumps(message))

    def wait_for(self, *kinds: str) -> dict[str, Any]:
        """The next message of one of these kinds; the others before it are `unread`."""
        while True:
            message: dict[str, Any] = json.loads(self.socket.recv(timeout=TIMEOUT_S))
            if message["type"] in kinds:
                return message
            self.unread.append(message)

    def push_and_wait(self, frame: bytes, time_s: float | None = None) -> dict[str, Any]:
        """Send a frame. Returns what the server says of it."""
        self.push(frame, time_s)
        return self.wait_for("frame", "error")

    def ask(self, text: str, **options: Any) -> dict[str, Any]:
        """Ask, and return the end of the answer, or the error."""
        self.say(type="ask", text=text, **{"temperature": 0, **options})
        return self.wait_for("answer.done", "error")

    def fail(self, content: str | bytes) -> dict[str, Any]:
        """Send something, and return the error that it has."""
        self.socket.send(content)
        error: dict[str, Any] = self.wait_for("error")["error"]
        return error


@contextlib.contextmanager
def open_live(url: str, **options: Any) -> Iterator[LiveClient]:
    """A session with the server at a URL, for the time of the block. options: those of `connect`."""
    address = url.replace("http", "ws", 1) + "/v1/live"
    with connect(address, max_size=None, open_timeout=TIMEOUT_S, close_timeout=5, **options) as socket:
        yield LiveClient(socket)

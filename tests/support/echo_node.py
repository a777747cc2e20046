"""A node that answers with what it was sent, as the body says: `python echo_node.py NAME PORT SLOW_S`. Prints its port.
Each answer takes `SLOW_S` seconds at least. It stores resp_NAME and file-NAME, and no others.

Fields of a body: `wait_s` before the answer; `stream`: events, `num_events` of them, `pause_s` apart; `status`; `die`:
the process dies before it answers; `die_before`: so does the one that removes this file; `die_behind`: it does so
behind the head of its answer; `die_after`: the process dies after so many events.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

_ID = re.compile(r"(?:resp_|file-)(\w+)")
counts = {"refused": 0, "requests": 0, "running": 0, "gone": 0, "terminated": 0, "events": 0}


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Node:
    def __init__(self, name: str, slow_s: float) -> None:
        self.name, self.slow_s = name, slow_s
        self.status = self.answer_status = 200

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        body = bytearray()
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if path == "/health":
            await self._send(send, {"status": "ok"}, self.status)
        elif path == "/set_health":
            self.status = json.loads(body)["status"]
            await self._send(send, {})
        elif path == "/set_answers":
            self.answer_status = json.loads(body)["status"]
            await self._send(send, {})
        elif path == "/counts":
            await self._send(send, counts)
        elif path == "/terminate":
            counts["terminated"] += 1
            await self._send(send, {})
        elif path == "/v1/models":
            await self._send(send, {"object": "list", "data": [{"id": "echo"}, {"id": f"only-{self.name}"}]})
        else:
            await self._answer(scope, bytes(body), receive, send)

    async def _answer(self, scope: Any, body: bytes, receive: Any, send: Any) -> None:
        counts["requests"] += 1
        counts["running"] += 1
        gone = asyncio.create_task(receive())
        answering = asyncio.create_task(self._respond(scope, body, send))
        try:
            await asyncio.wait((gone, answering), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
            else:
                counts["gone"] += 1
        finally:
            counts["running"] -= 1
            gone.cancel()
            answering.cancel()

    async def _respond(self, scope: Any, body: bytes, send: Any) -> None:
        try:
            orders = json.loads(body)
        except ValueError:
            orders = {}
        sought = _ID.search(scope["path"]) or _ID.search(str(orders.get("previous_response_id")))
        if self.answer_status != 200 or (sought and sought[1] != self.name):
            counts["refused"] += 1
            await self._send(send, {"error": {"message": "no"}}, self.answer_status if not sought else 404)
            return
        if "die_before" in orders:
            with contextlib.suppress(FileNotFoundError):
                Path(orders["die_before"]).unlink()
                _die()
        if orders.get("die"):
            _die()
        dies_behind = "die_behind" in orders and Path(orders["die_behind"]).exists()
        if dies_behind:
            Path(orders["die_behind"]).unlink()
        await asyncio.sleep(max(orders.get("wait_s", 0), self.slow_s))
        if orders.get("stream"):
            await self._stream(orders, send)
            return
        echoed = {
            "node": self.name,
            "id": f"resp_{self.name}",
            "output_file_id": f"file-{self.name}",
            "method": scope["method"],
            "path": scope["raw_path"].decode(),
            "query": scope["query_string"].decode(),
            "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]],
            "num_bytes": len(body),
            "body": body.decode("latin-1") if len(body) < 1 << 16 else "",
        }
        await self._send(send, echoed, orders.get("status", 200), dies=dies_behind)

    async def _stream(self, orders: Any, send: Any) -> None:
        kind = orders.get("content_type", "text/event-stream").encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        for index in range(orders.get("num_events", 3)):
            if index == orders.get("die_after"):
                _die()
            event = b'data: {"node": "%s", "index": %d}\n\n' % (self.name.encode(), index)
            await send({"type": "http.response.body", "body": event, "more_body": True})
            counts["events"] += 1
            await asyncio.sleep(orders.get("pause_s", 0))
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _send(self, send: Any, value: Any, status: int = 200, *, dies: bool = False) -> None:
        body = json.dumps(value).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), (b"x-node", b"1")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if dies:
            await asyncio.sleep(0.1)  # the head arrives
            _die()
        await send({"type": "http.response.body", "body": body})


@dataclass
class EchoProcess:
    """A node in a process of its own."""

    name: str
    url: str
    process: subprocess.Popen[bytes]


def start_node(name: str, port: int = 0, *, slow_s: float = 0.0) -> EchoProcess:
    """Start a node, and wait until it listens."""
    process = subprocess.Popen([sys.executable, __file__, name, str(port), str(slow_s)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as out:
        return EchoProcess(name, f"http://127.0.0.1:{int(out.readline())}", process)


@contextlib.contextmanager
def echo_nodes(num: int) -> Iterator[list[EchoProcess]]:
    """Nodes a, b, c … for the time of the block."""
    nodes: list[EchoProcess] = []
    try:
        for index in range(num):
            nodes.append(start_node("abcdefgh"[index]))
        yield nodes
    finally:
        for node in nodes:
            node.process.kill()
            node.process.wait()


def main() -> None:
    with socket.socket(proto=socket.IPPROTO_TCP) as sock:  # asyncio sets TCP_NODELAY for these alone
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", int(sys.argv[2])))
        sock.listen(1024)
        print(sock.getsockname()[1], flush=True)
        config = uvicorn.Config(
            Node(sys.argv[1], float(sys.argv[3])), log_level="error", access_log=False, lifespan="off"
        )
        uvicorn.Server(config).run(sockets=[sock])


if __name__ == "__main__":
    main()

"""How servers take connections, and share out those of a socket that they share. They run in one event loop: what one
of them leaves, another one finds at once."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from live_server import make_settings, wait_until
from waiting import until

from seesay.engine.front.engine import AsyncEngine
from seesay.serving.app import create_app
from seesay.serving.frontends.accepting import SharingServer
from seesay.serving.frontends.connection_counts import ConnectionCounts
from seesay.serving.server import DrainingServer


@contextlib.contextmanager
def sharing(engine: AsyncEngine, num_servers: int) -> Iterator[tuple[str, list[SharingServer], ConnectionCounts]]:
    """Servers of one socket, its URL, and the counts of one server more, which takes no connections."""
    settings = make_settings()
    counts, memory = ConnectionCounts.make(num_servers + 1)
    with socket.socket() as shared:
        shared.bind(("127.0.0.1", 0))
        sockets = [shared.dup() for _ in range(num_servers)]
        servers = []
        for index in range(num_servers):
            servers.append(SharingServer.make(create_app(engine, settings), settings))
            servers[-1].counts, servers[-1].index = counts, index
            servers[-1].config.timeout_keep_alive = 600  # none ends before all are counted

        async def run() -> None:
            await asyncio.gather(*(server.serve([sock]) for server, sock in zip(servers, sockets, strict=True)))

        thread = threading.Thread(target=asyncio.run, args=(run(),))
        thread.start()
        try:
            wait_until(lambda: all(server.started for server in servers))
            yield f"http://127.0.0.1:{shared.getsockname()[1]}", servers, counts
        finally:
            for server in servers:
                server.should_exit = True
            thread.join(60)
            for sock in sockets:
                sock.close()
    assert not thread.is_alive()
    counts.close()
    os.close(memory)


@contextlib.contextmanager
def connected(url: str, number: int) -> Iterator[list[httpx.Client]]:
    """Clients that have connected one after the other."""
    with contextlib.ExitStack() as opened:
        clients = []
        for _ in range(number):
            clients.append(opened.enter_context(httpx.Client(timeout=60)))
            assert clients[-1].get(f"{url}/health").status_code == 200
        yield clients


def count_held(servers: list[SharingServer]) -> list[int]:
    return [len(server.server_state.connections) for server in servers]


@pytest.mark.parametrize("num_servers", [2, 3])
def test_the_server_with_the_fewest_connections_takes_the_next(engine: AsyncEngine, num_servers: int) -> None:
    with sharing(engine, num_servers) as (url, servers, _):
        with connected(url, 30):
            assert count_held(servers) == [30 // num_servers] * num_servers
        wait_until(lambda: not any(count_held(servers)))


def test_connections_do_not_wait_for_a_server_that_takes_none(engine: AsyncEngine) -> None:
    """It may be stopped, with fewer connections than the others."""
    with sharing(engine, 2) as (url, servers, counts):
        counts.set(2, 0)
        with connected(url, 10):
            assert sum(count_held(servers)) == 10


class ExhaustedSocket(socket.socket):
    """A listening socket of a process that has no descriptor for a connection, while `is_exhausted`."""

    is_exhausted = True
    num_refused = 0

    def accept(self) -> tuple[socket.socket, Any]:
        if self.is_exhausted:
            self.num_refused += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_a_server_without_descriptors_answers_on_and_tries_again_later(engine: AsyncEngine) -> None:
    server = DrainingServer.make(create_app(engine, make_settings()), make_settings())
    with ExhaustedSocket() as sock:
        sock.bind(("127.0.0.1", 0))
        serving = asyncio.create_task(server._serve([sock]))
        await until(lambda: server.started)
        async with httpx.AsyncClient(timeout=60) as client:
            asked = asyncio.create_task(client.get(f"http://127.0.0.1:{sock.getsockname()[1]}/health"))
            await until(lambda: sock.num_refused > 0)
            for _ in range(50):  # turns of the event loop, in which others are answered
                await asyncio.sleep(0)
            assert sock.num_refused <= 2, "it tries once a second"
            sock.is_exhausted = False
            assert (await asked).status_code == 200
        server.should_exit = True
        await serving

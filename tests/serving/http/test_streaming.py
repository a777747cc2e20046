"""Streams that wait: an early error is an HTTP error, a late one an event; headers and comments go out meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from seesay.serving.errors import ApiError, bad_request
from seesay.serving.http.streaming import EventStream, LastEvents, LineStream
from seesay.serving.requests.caller import Progress


class Quick(EventStream):
    headers_after_s, keep_alive_s = 0.02, 0.02


class QuickLines(LineStream):
    headers_after_s, keep_alive_s = 0.02, 0.02


class Client:
    """The ASGI side of a client that stays. `seen` fires when the server has sent something it waits for."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self._gone = asyncio.Event()
        self._news = asyncio.Condition()

    async def send(self, message: Any) -> None:
        async with self._news:
            self.sent.append(message)
            self._news.notify_all()

    async def receive(self) -> Any:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def see(self, number: int) -> None:
        async with self._news:
            await self._news.wait_for(lambda: len(self.sent) >= number)

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent[1:]]


async def answer(stream: EventStream, client: Client) -> None:
    await asyncio.wait_for(stream({"type": "http"}, client.receive, client.send), 60)


def render(error: ApiError) -> bytes:
    return f"error {error.message}".encode()


def fail() -> bytes:
    raise bad_request("no")


async def test_a_stream_that_waits_gets_headers_and_comments() -> None:
    client = Client()

    async def events() -> AsyncGenerator[bytes, None]:
        await client.see(4)
        yield LastEvents(b"data: x\n\n")

    await answer(Quick(events(), render_error=render), client)
    assert client.sent[0]["type"] == "http.response.start"
    assert (b"content-type", b"text/event-stream; charset=utf-8") in client.sent[0]["headers"]
    assert client.bodies[:3] == [b": keep-alive\n\n"] * 3 and client.bodies[-1] == b"data: x\n\n"
    assert [message["more_body"] for message in client.sent[1:]] == [True] * (len(client.sent) - 2) + [False]


async def test_a_stream_that_waits_for_its_turn_alone_gets_its_headers() -> None:
    """An error that is found before is an HTTP error, however long it takes up to a second."""
    client, progress = Client(), Progress()

    class Patient(EventStream):
        headers_after_s, first_look_s = 60.0, 0.01

    async def events() -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(0.1)
        assert client.sent == []
        progress.is_queued = lambda: True
        await client.see(1)
        assert [message["type"] for message in client.sent] == ["http.response.start"]
        yield LastEvents(b"data: x\n\n")

    scope = {"type": "http", "state": {"progress": progress}}
    stream = Patient(events(), render_error=render)
    await asyncio.wait_for(stream(scope, client.receive, client.send), 60)
    assert client.bodies == [b"data: x\n\n"]


async def test_lines_have_no_comments() -> None:
    client = Client()

    async def events() -> AsyncGenerator[bytes, None]:
        await client.see(1)
        await asyncio.sleep(0.1)
        yield b"{}\n"

    await answer(QuickLines(events(), render_error=render), client)
    assert (b"content-type", b"application/x-ndjson") in client.sent[0]["headers"]
    assert client.bodies == [b"{}\n", b""]


@pytest.mark.parametrize("waits", [False, True])
async def test_an_error(waits: bool) -> None:
    client = Client()

    async def events() -> AsyncGenerator[bytes, None]:
        if waits:
            await client.see(1)
        yield fail()

    stream = Quick(events(), render_error=render) if waits else EventStream(events(), render_error=render)
    if waits:
        await answer(stream, client)
        assert client.bodies[-2:] == [b"error no", b""]
    else:
        with pytest.raises(ApiError):
            await answer(stream, client)
        assert client.sent == []


async def test_a_stream_without_events_is_an_answer() -> None:
    async def nothing() -> AsyncGenerator[bytes, None]:
        for event in list[bytes]():
            yield event

    client = Client()
    await answer(EventStream(nothing(), render_error=render), client)
    assert [message["type"] for message in client.sent] == ["http.response.start", "http.response.body"]

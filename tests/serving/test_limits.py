"""Keys, bodies, queues, deadlines, origins, and failures of our own: who is let in, and what others are told."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai_schemas as schemas
import pytest
from live_server import (
    MODEL,
    HeldEngine,
    LiveServer,
    ask_about,
    make_data_url,
    make_settings,
    read_events,
    serve,
    until,
    wait_until,
)

from seesay.config import MediaLimits
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import ConfigError, ErrorCode, RequestError
from seesay.serving.app import create_app
from seesay.serving.server import DrainingServer
from seesay.serving.settings import ServerSettings
from seesay.serving.traffic.admission import REQUESTS_PER_TURN, Turnstile

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def client_of(engine: Any, **options: Any) -> httpx.AsyncClient:
    app = create_app(engine, make_settings(**options))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test", timeout=60)


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    schemas.check(response.json(), schemas.ERROR)
    assert response.headers["x-request-id"]
    error: dict[str, Any] = response.json()["error"]
    return error


# --- keys ----------------------------------------------------------------------------------------------------------


async def test_keys_as_bearer_or_header(engine: AsyncEngine) -> None:
    http = client_of(engine, api_keys=("alpha", "beta"))
    for headers in ({"Authorization": "Bearer alpha"}, {"authorization": "bearer beta"}, {"x-api-key": "beta"}):
        assert (await http.get("/v1/models", headers=headers)).status_code == 200
    for headers in (
        {},
        {"Authorization": "Bearer alph"},
        {"x-api-key": "alpha2"},
        {"Authorization": "Basic alpha"},
        {"x-api-key": ""},
    ):
        response = await http.get("/v1/models", headers=headers)
        error = error_of(response, 401)
        assert error["code"] == "invalid_api_key" and response.headers["www-authenticate"] == "Bearer"
    for path in ("/health", "/version", "/", "/openapi.json"):
        assert (await http.get(path)).status_code == 200
    for path in ("/metrics", "/nothing"):
        error_of(await http.get(path), 401)


async def test_a_wrong_key_is_refused_before_the_body_is_read(engine: AsyncEngine) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 1000

    http = client_of(engine, api_keys=("alpha",))
    error_of(await asyncio.wait_for(http.post(CHAT, content=endless()), 60), 401)


def test_settings_never_show_keys() -> None:
    assert "alpha" not in repr(ServerSettings(api_keys=("alpha",), ssl_certfile="c", ssl_keyfile_password="alpha"))


# --- bodies --------------------------------------------------------------------------------------------------------


def test_announced_two_gigabytes_are_refused_at_once(server: LiveServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {2 << 30}\r\n\r\n"
        client.sendall(head.encode())
        client.settimeout(60)
        answer = b""
        while chunk := client.recv(65536):  # the server closes the connection: it waits for nothing
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_too_large"


async def test_unannounced_large_bodies_are_refused_on_the_way(engine: AsyncEngine) -> None:
    num_sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal num_sent
        while True:
            num_sent += 1000
            yield b" " * 1000

    http = client_of(engine, max_body_bytes=10_000)
    error_of(await http.post(CHAT, content=endless(), headers={"content-type": "application/json"}), 413)
    assert num_sent <= 12_000


def test_a_body_that_drips_is_refused(engine: AsyncEngine) -> None:
    with serve(engine, make_settings(body_timeout_s=0.3)) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
            client.sendall(head.encode())
            client.settimeout(60)
            assert client.recv(65536).startswith(b"HTTP/1.1 408 ")
        wait_until(lambda: server.state.gate.num_inside == 0)


# --- heads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(b"a%d: %s\r\n" % (i, b"x" * 9000) for i in range(9)),
        b"GET /health HTTP/1.1\r\na: " + b"x" * 70_000,
        b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * (1 << 20),
        b"GET /" + b"x" * 70_000,
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.1\r\na: " + b"x" * 500_000,
    ],
    ids=["lines", "line", "unfinished", "path", "second"],
)
def test_a_large_head_is_refused(server: LiveServer, head: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(60)
        answer = b""
        with contextlib.suppress(ConnectionError):  # closed while we were sending
            client.sendall(head + b"\r\n")
            while piece := client.recv(65536):
                answer += piece
    *earlier, last = re.findall(rb"HTTP/1.1 (\d+)", answer) or [b"431"]
    assert last == b"431" and set(earlier) <= {b"200"}


def test_a_large_head_is_431_and_an_ordinary_one_is_not(server: LiveServer) -> None:
    assert httpx.get(f"{server.url}/health", headers={"a": "x" * 70_000}, timeout=60).status_code == 431
    with httpx.Client(timeout=60) as client:
        for _ in range(3):
            assert client.get(f"{server.url}/health", headers={"a": "x" * 60_000}).status_code == 200
    large = {"messages": [{"role": "user", "content": "x" * 300_000}]}
    assert server.post(CHAT, large).json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("first", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_a_head_that_drips_is_given_up(server: LiveServer, monkeypatch: pytest.MonkeyPatch, first: bytes) -> None:
    monkeypatch.setattr("seesay.serving.http.http_protocol.HEAD_TIMEOUT_S", 2.0)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(60)
        client.sendall(first)
        if first:
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        with pytest.raises(ConnectionError):  # before the head is complete
            for byte in itertools.chain(b"GET /health HTTP/1.1\r\na: ", itertools.repeat(ord("x"))):
                client.sendall(bytes([byte]))
                time.sleep(0.02)


def test_a_long_answer_outlives_the_time_of_a_head(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seesay.serving.http.http_protocol.HEAD_TIMEOUT_S", 2.0)
    held = HeldEngine(engine)
    with serve(held) as server:
        results: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: results.append(server.post(CHAT, BODY)))
        thread.start()
        wait_until(lambda: not held.submitted.empty())
        time.sleep(2.5)
        held.answer({"text": "done", "finish_reason": "stop"})
        thread.join(60)
    assert results[0].json()["choices"][0]["message"]["content"] == "done"


# --- the queue -----------------------------------------------------------------------------------------------------


def test_connections_of_one_moment_are_taken_in_few_turns_of_the_loop(engine: AsyncEngine) -> None:
    """An event loop that is busy has few turns in a second."""
    server = DrainingServer.make(create_app(engine, make_settings()), make_settings())
    num_turns = 0

    async def connect(num: int) -> None:
        nonlocal num_turns
        taken: list[asyncio.BaseTransport] = []

        class Protocol(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                taken.append(transport)

        listening = await asyncio.get_running_loop().create_server(Protocol, "127.0.0.1", 0, backlog=num)
        clients = [socket.create_connection(listening.sockets[0].getsockname()) for _ in range(num)]
        while len(taken) < num:
            num_turns += 1
            await asyncio.sleep(0)
        ends: list[Any] = [*clients, *taken, listening]
        for end in ends:
            end.close()

    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(connect(50))
    assert num_turns < 25


async def test_requests_that_arrive_in_one_moment_pass_a_few_in_each_turn_of_the_loop() -> None:
    turnstile, turns, passed = Turnstile(), itertools.count(), list[tuple[int, int]]()
    loop = asyncio.get_running_loop()
    turn = 0

    def count_turns() -> None:
        nonlocal turn
        turn = next(turns)
        if len(passed) < 29:
            loop.call_soon(count_turns)

    async def enter(number: int) -> None:
        await turnstile.wait()
        passed.append((number, turn))

    count_turns()
    tasks = [asyncio.create_task(enter(number)) for number in range(30)]
    await asyncio.sleep(0)
    tasks[20].cancel()
    await asyncio.wait(tasks)
    assert [number for number, _ in passed] == [number for number in range(30) if number != 20]
    assert max(Counter(turn for _, turn in passed).values()) <= REQUESTS_PER_TURN
    await asyncio.sleep(0)
    await turnstile.wait()  # free again


async def test_full_queue_is_429_and_frees_again(engine: AsyncEngine) -> None:
    held = HeldEngine(engine)
    app = create_app(held, make_settings(max_concurrent_requests=1, max_queue=1))
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test", timeout=60)
    waiting = [asyncio.create_task(http.post(CHAT, json=BODY)) for _ in range(2)]
    await until(lambda: not held.submitted.empty())
    await until(lambda: app.state.server.answering.num_waiting == 1)
    response = await http.post(CHAT, json=BODY)
    assert error_of(response, 429)["type"] == "rate_limit_error" and int(response.headers["retry-after"]) >= 1
    assert (await http.get("/health")).status_code == 200
    for task in waiting:
        while not task.done():
            await asyncio.sleep(0)
            if not held.submitted.empty():
                held.answer({"text": "a", "finish_reason": "stop"})
        assert task.result().status_code == 200
    task = asyncio.create_task(http.post(CHAT, json=BODY))
    await until(lambda: not held.submitted.empty())
    held.answer({"finish_reason": "stop"})
    assert (await task).status_code == 200


async def test_bodies_are_bounded_together(engine: AsyncEngine) -> None:
    held = HeldEngine(engine)
    http = client_of(held, max_total_body_bytes=15_000)
    large = {"messages": [{"role": "user", "content": "x" * 10_000}]}
    first = asyncio.create_task(http.post(CHAT, json=large))
    while held.submitted.empty():
        await asyncio.sleep(0)
    assert error_of(await http.post(CHAT, json=large), 429)["code"] == "queue_full"
    held.answer({"finish_reason": "stop"})
    assert (await first).status_code == 200
    second = asyncio.create_task(http.post(CHAT, json=large))
    while held.submitted.empty():
        await asyncio.sleep(0)
    held.answer({"finish_reason": "stop"})
    assert (await second).status_code == 200


async def test_too_slow_an_answer_is_504(engine: AsyncEngine) -> None:
    http = client_of(HeldEngine(engine), request_timeout_s=0.05)
    assert error_of(await http.post(CHAT, json=BODY), 504)["code"] == "request_timeout"
    assert error_of(await http.post(CHAT, json={**BODY, "stream": True}), 504)["code"] == "request_timeout"


async def test_closed_engine_is_503(engine: AsyncEngine) -> None:
    class Closed(HeldEngine):
        def submit_batch(self, requests: Any, on_output: Any, prompts: Any = None) -> list[int]:
            raise RequestError(ErrorCode.CLOSED, "the engine is closed")

    response = await client_of(Closed(engine)).post(CHAT, json=BODY)
    assert error_of(response, 503)["code"] == "closed" and response.headers["retry-after"]


# --- failures of our own -------------------------------------------------------------------------------------------


async def test_failure_of_ours_has_an_id_that_the_log_has(
    engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(HeldEngine):
        def submit_batch(self, requests: Any, on_output: Any, prompts: Any = None) -> list[int]:
            raise ZeroDivisionError("a secret of the server")

    with caplog.at_level(logging.ERROR, logger="seesay"):
        response = await client_of(Broken(engine)).post(CHAT, json=BODY)
    error = error_of(response, 500)
    request_id = response.headers["x-request-id"]
    assert request_id in error["message"] and "secret" not in error["message"] and error["type"] == "server_error"
    assert request_id in caplog.text and "ZeroDivisionError" in caplog.text


async def test_error_in_mid_stream_is_an_event_and_the_end(engine: AsyncEngine) -> None:
    held = HeldEngine(engine)
    http = client_of(held)
    for error, code in (
        (RequestError(ErrorCode.OUT_OF_MEMORY, "full"), "out_of_memory"),
        (ValueError("x"), "internal_error"),
    ):
        task = asyncio.create_task(http.post(CHAT, json={**BODY, "stream": True}))
        while held.submitted.empty():
            await asyncio.sleep(0)
        held.answer({"text": "a"}, {"finish_reason": "error", "error": error})
        response = await task
        assert response.status_code == 200 and "[DONE]" not in response.text
        events = read_events(response.text)
        schemas.check(events[-1], schemas.ERROR)
        assert events[-1]["error"]["code"] == code and len(events) == 3


async def test_prompts_and_media_are_not_logged_in_full(engine: AsyncEngine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        content = ask_about(make_data_url(), "a private question")
        await client_of(engine).post(CHAT, json={"messages": content, "max_tokens": 2})
        await client_of(engine).post(CHAT, json={"messages": content, "top_p": 7})
    assert "private" not in caplog.text and "base64" not in caplog.text


# --- origins -------------------------------------------------------------------------------------------------------


async def test_pages_of_named_origins_may_ask(engine: AsyncEngine) -> None:
    http = client_of(engine, cors_origins=("https://ok.example",), api_keys=("alpha",))
    asks = {"Origin": "https://ok.example", "Access-Control-Request-Method": "POST"}
    preflight = await http.options(CHAT, headers={**asks, "Access-Control-Request-Headers": "authorization"})
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://ok.example"
    refused = await http.post(CHAT, json=BODY, headers={"Origin": "https://ok.example"})
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == "https://ok.example"
    other = await http.get("/health", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers
    closed = await client_of(engine).get("/health", headers={"Origin": "https://ok.example"})
    assert "access-control-allow-origin" not in closed.headers


# --- clients that leave --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_hangs_up_frees_its_blocks(server: LiveServer, engine: AsyncEngine, stream: bool) -> None:
    body = json.dumps(
        {"messages": [{"role": "user", "content": "the game"}], "stream": stream, "ignore_eos": True, "n": 2}
    )
    steps_before = engine.stats().total_step_tokens
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        client.sendall((head + body).encode())
        if stream:
            assert b"200 OK" in client.recv(100)
        wait_until(lambda: engine.stats().num_running == 2)
    wait_until(lambda: engine.stats().num_used_kv_blocks == 0)
    assert engine.stats().num_running == 0
    num_tokens = engine.stats().total_step_tokens - steps_before
    assert num_tokens < 1.9 * engine.session_len, "both answers went on after their client was gone"
    wait_until(lambda: server.state.gate.num_inside == 0)


def test_many_that_hang_up_leave_nothing(server: LiveServer, engine: AsyncEngine) -> None:
    def ask(i: int) -> None:
        body = {**BODY, "messages": ask_about(make_data_url(seed=i % 4), "the game"), "stream": True, "max_tokens": 60}
        with httpx.Client(timeout=60) as client, client.stream("POST", f"{server.url}{CHAT}", json=body) as response:
            for count, _ in enumerate(response.iter_lines()):
                if i % 2 and count > i:
                    return

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    wait_until(lambda: engine.stats().num_used_kv_blocks == 0)
    wait_until(lambda: server.state.gate.num_inside == server.state.answering.num_running == 0)


# --- the end -------------------------------------------------------------------------------------------------------


def test_draining_finishes_what_runs_and_refuses_what_comes(engine: AsyncEngine) -> None:
    held = HeldEngine(engine)
    with serve(held, make_settings(drain_timeout_s=120)) as server:
        results: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: results.append(server.post(CHAT, BODY)))
        thread.start()
        wait_until(lambda: not held.submitted.empty())
        server.state.gate.is_draining = True
        refused = server.post(CHAT, BODY)
        assert error_of(refused, 503)["code"] == "shutting_down" and int(refused.headers["retry-after"]) >= 1
        error_of(httpx.get(f"{server.url}/health", timeout=60), 503)
        server.uvicorn.should_exit = True
        time.sleep(0.2)
        held.answer({"text": "done", "finish_reason": "stop"})
        thread.join(60)
    assert results[0].json()["choices"][0]["message"]["content"] == "done"


def test_a_signal_ends_the_server_when_the_last_answer_is_given(engine: AsyncEngine) -> None:
    held = HeldEngine(engine)
    with serve(held, make_settings(drain_timeout_s=120)) as server:
        results: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: results.append(server.post(CHAT, BODY)))
        thread.start()
        wait_until(lambda: not held.submitted.empty())
        server.loop.call_soon_threadsafe(server.uvicorn.handle_exit, signal.SIGTERM, None)
        wait_until(lambda: server.state.gate.is_draining)
        time.sleep(0.3)  # it goes on to listen
        assert error_of(server.post(CHAT, BODY), 503)["code"] == "shutting_down"
        health = httpx.get(f"{server.url}/health", timeout=60)
        assert error_of(health, 503)["code"] == "shutting_down" and int(health.headers["retry-after"]) >= 1
        assert not server.uvicorn.should_exit
        held.answer({"text": "done", "finish_reason": "stop"})
        thread.join(60)
        wait_until(lambda: server.uvicorn.should_exit)
    assert results[0].json()["choices"][0]["message"]["content"] == "done"


def test_drain_ends_with_an_error_in_the_end(engine: AsyncEngine) -> None:
    held = HeldEngine(engine)
    with serve(held, make_settings(drain_timeout_s=0.2)) as server:
        results: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: results.append(server.post(CHAT, {**BODY, "stream": True})))
        thread.start()
        held.answer({"text": "half"})
        asyncio.run_coroutine_threadsafe(_drain(server), server.loop).result(60)
        thread.join(60)
    assert read_events(results[0].text)[-1]["error"]["code"] == "shutting_down"


async def _drain(server: LiveServer) -> None:
    server.uvicorn.drain()


# --- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"port": 70000}, "port"), ({"port": -1}, "port"), ({"max_queue": -1}, "max_queue"),
        ({"max_concurrent_requests": 0}, "max_concurrent_requests"), ({"request_timeout_s": 0}, "request_timeout_s"),
        ({"api_keys": ("",)}, "api_keys"), ({"api_keys": (" a",)}, "api_keys"), ({"log_level": "LOUD"}, "log_level"),
        ({"generation_defaults": "mine"}, "generation_defaults"), ({"ssl_keyfile": "k"}, "ssl_certfile"),
        ({"cors_origins": ("*",), "cors_credentials": True}, "cors_credentials"),
        ({"max_body_bytes": 0}, "max_body_bytes"), ({"tool_call_parser": "x"}, "tool_call_parser must be one of"),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        ServerSettings(**options)


def test_a_folder_needs_an_engine_that_keeps_to_it(engine: AsyncEngine, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="media_limits"):
        create_app(engine, make_settings(media=MediaLimits(allowed_local_media_path=str(tmp_path))))


def test_model_name(engine: AsyncEngine) -> None:
    assert create_app(engine, make_settings()).state.server.model_name == MODEL
    named_after_folder = create_app(engine, make_settings(model_name=None)).state.server.model_name
    assert named_after_folder and "/" not in named_after_folder

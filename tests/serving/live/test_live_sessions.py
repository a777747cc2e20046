"""The protocol of `/v1/live`: what is refused and how, limits, keys and origins, and how sessions end."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from live_client import LiveClient, encode, open_live
from live_server import HeldEngine, LiveServer, make_settings, serve, wait_until
from PIL import Image
from websockets.exceptions import ConnectionClosed, InvalidStatus

from seesay.engine.front.engine import AsyncEngine
from seesay.serving.http.socket_protocol import MAX_MESSAGE_BYTES, MAX_MESSAGES_PER_S
from seesay.serving.live.inbox import MAX_FRAMES, MAX_QUESTIONS
from seesay.values import Usage


@pytest.fixture
def live(server: LiveServer) -> Iterator[LiveClient]:
    with open_live(server.url) as client:
        yield client
    wait_until(lambda: server.state.gate.num_sessions == 0)


def refused(url: str, **options: Any) -> tuple[int, dict[str, Any]]:
    """The status and the error with which a session is refused."""
    with pytest.raises(InvalidStatus) as caught, open_live(url, **options):
        pass
    response = caught.value.response
    assert response.headers["x-request-id"]
    error: dict[str, Any] = json.loads(response.body or b"")["error"]
    return response.status_code, error


# --- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        ("{", "invalid_json", "a text message must be a JSON object: "),
        ("[1]", "invalid_json", "a text message must be a JSON object, got"),
        ("[" * 100_000, "invalid_json", "a text message must be a JSON object: "),
        ("{}", "invalid_request", "type must be one of 'configure', 'frame', 'ask', 'stop', which is missing"),
        ('{"type": "shout"}', "invalid_request", "'stop', got 'shout'"),
        ('{"type": ["ask"]}', "invalid_request", "type must be one of"),
        ('{"type": "ask"}', "missing_required_parameter", "the field text is missing"),
        ('{"type": "ask", "text": ""}', "invalid_request", "text must"),
        ('{"type": "ask", "text": 7}', "invalid_request", "text must be a string, got 7"),
        ('{"type": "ask", "text": "x", "n": 2}', "unknown_parameter", "unknown field: n"),
        ('{"type": "ask", "text": "x", "temperature": 9}', "invalid_request", "temperature must"),
        ('{"type": "ask", "text": "x", "stop": ""}', "invalid_request", "a stop string must not be empty"),
        ('{"type": "frame"}', "missing_required_parameter", "the field time_s is missing"),
        ('{"type": "frame", "time_s": -1}', "invalid_request", "time_s: must be in [0, 1e9), got -1"),
        ('{"type": "frame", "time_s": NaN}', "invalid_request", "time_s must be a finite number"),
        ('{"type": "configure", "max_frames": 1}', "invalid_request", "max_frames must"),
        ('{"type": "configure", "max_frames": 65}', "invalid_request", "max_frames must be at most 64, got 65"),
        ('{"type": "configure", "model": "gpt"}', "model_not_found", "the model 'gpt' does not exist"),
        (json.dumps({"type": "ask", "text": "x" * (256 << 10)}), "message_too_large", "a text message may have 262144"),
        (b"", "invalid_media", "a frame must be a JPEG, PNG or WebP picture; these 0 bytes begin like none"),
        (b"GIF89a" + bytes(100), "invalid_media", "these 106 bytes begin like none of them"),
        (encode("red")[:300], "invalid_media", "is damaged or cut off"),
        (b"\xff\xd8\xff" + bytes(5000), "invalid_media", "5003 bytes"),
        (b"RIFF\x00\x00\x00\x00WEBP" + bytes(50), "invalid_media", "62 bytes"),
    ],
)
def test_what_is_wrong_is_said_and_the_session_goes_on(
    live: LiveClient, content: str | bytes, code: str, message: str
) -> None:
    error = live.fail(content)
    assert error["code"] == code and message in error["message"], error
    assert len(error["message"]) < 500
    assert live.push_and_wait(encode("red"))["num_frames"] == 1


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_frames_are_taken_in_three_formats(live: LiveClient, kind: str) -> None:
    said = live.push_and_wait(encode("green", kind), 1.25)
    assert said == {"type": "frame", "time_s": 1.25, "num_frames": 1}


def test_a_frame_without_a_time_has_that_of_its_arrival(live: LiveClient) -> None:
    first, second = live.push_and_wait(encode("red")), live.push_and_wait(encode("red"))
    assert 0 <= first["time_s"] <= second["time_s"] < 120


def test_times_go_forward(live: LiveClient) -> None:
    live.push_and_wait(encode("red"), 5)
    said = live.push_and_wait(encode("red"), 4)
    assert said["time_s"] == 4 and said["error"]["param"] == "time_s"
    assert said["error"]["message"] == "time_s must be seconds, at least 5, got 4.0"
    assert live.push_and_wait(encode("red"), 5)["num_frames"] == 2


def test_a_frame_of_too_many_pixels_is_refused_before_it_is_decoded(live: LiveClient) -> None:
    error = live.push_and_wait(encode("red", "PNG", size=5000))["error"]
    assert error["code"] == "media_too_large" and "16000000" in error["message"].replace(",", "").replace(" ", "")


def test_a_session_is_configured_before_it_begins(live: LiveClient) -> None:
    live.say(type="configure", model="tiny", system="Answer in one word.", max_frames=2)
    assert live.wait_for("ready")["max_frames"] == 2
    for number in range(5):
        assert live.push_and_wait(encode("red"), number)["num_frames"] <= 2
    error = live.fail(json.dumps({"type": "configure", "max_frames": 4}))
    assert error["message"] == "configure must come before the first frame and the first question"


def test_an_answer_that_fails_is_told_and_leaves_its_frames(live: LiveClient) -> None:
    live.push_and_wait(encode("red"), 1)
    failed = live.ask("what is it? " * 400, id="long")  # the context is 512 tokens
    assert failed["id"] == "long" and failed["error"]["code"] == "context_length_exceeded", failed
    done = live.ask("what is it?", max_tokens=4)
    assert done["finish_reason"] == "length" and done["frames_s"] == [1] and done["usage"]["completion_tokens"] == 4


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_message_that_is_too_large_ends_the_session_and_says_why(server: LiveServer) -> None:
    with open_live(server.url) as live, pytest.raises(ConnectionClosed) as caught:
        live.socket.send(bytes(MAX_MESSAGE_BYTES + 1))
        live.wait_for("error")
    assert caught.value.rcvd is not None and caught.value.rcvd.code == 1009
    assert str(MAX_MESSAGE_BYTES) in caught.value.rcvd.reason


@pytest.mark.parametrize("kind", ["text", "ping", "empty"])
def test_a_flood_of_tiny_messages_ends_its_session_alone(server: LiveServer, kind: str) -> None:
    frames = {
        "text": b"\x81\x82\x00\x00\x00\x00{}",
        "ping": b"\x89\x80\x00\x00\x00\x00",
        "empty": b"\x82\x80" + bytes(4),
    }
    with open_live(server.url) as other, open_live(server.url) as live:
        raw = live.socket.socket
        with pytest.raises((ConnectionClosed, OSError)):
            raw.sendall(frames[kind] * 200_000)
            live.wait_for("nothing")
        assert other.push_and_wait(encode("red"))["num_frames"] == 1
    assert live.socket.close_code == 1008 and f"more than {MAX_MESSAGES_PER_S}" in (live.socket.close_reason or "")


def test_only_so_many_sessions_are_open(engine: AsyncEngine) -> None:
    with serve(engine, make_settings(max_live_sessions=2)) as server:
        with open_live(server.url), open_live(server.url):
            status, error = refused(server.url)
            assert (status, error["code"]) == (429, "too_many_sessions")
            metrics = httpx.get(f"{server.url}/metrics").text
            assert "seesay_live_sessions 2.0" in metrics
            assert 'seesay_http_requests_total{endpoint="/v1/live",status="429"} 1.0' in metrics
        wait_until(lambda: server.state.gate.num_sessions == 0)
        with open_live(server.url):
            pass
    with serve(engine, make_settings(max_live_sessions=0)) as server:
        status, error = refused(server.url)
        assert status == 403 and error["message"] == "this server takes no live video (max_live_sessions=0)"


def test_frames_count_as_bodies_do(engine: AsyncEngine) -> None:
    frame = encode(Image.frombytes("RGB", (115, 115), random.Random(0).randbytes(3 * 115 * 115)), "PNG")
    with serve(engine, make_settings(max_total_body_bytes=100_000, max_body_bytes=100_000)) as server:
        with open_live(server.url) as live:
            assert [live.push_and_wait(frame, number)["type"] for number in range(3)] == ["frame", "frame", "error"]
            assert server.state.gate.num_bytes == 2 * len(frame)
            error = live.push_and_wait(frame, 3)["error"]
            assert error["code"] == "queue_full" and "100000 bytes" in error["message"]
            assert live.ask("?", max_tokens=2)["frames_s"] == [0, 1]
        wait_until(lambda: server.state.gate.num_bytes == 0)


def test_frames_that_come_too_fast_are_dropped_oldest_first(engine: AsyncEngine) -> None:
    held = HeldEngine(engine)
    with serve(held, make_settings()) as server, open_live(server.url) as live:
        assert live.push_and_wait(encode("red"), 0)["type"] == "frame"
        request_id, request, on_output = held.submitted.get(timeout=60)
        assert not request.wants_answer, "the first frame is being computed"
        for number in range(1, 21):
            live.push(encode("red"), number)
        live.fail("{")  # all of them have arrived
        held.submitted.put((request_id, request, on_output))
        held.answer({"finish_reason": "length", "usage": Usage(prompt_tokens=1)})
        dropped = live.wait_for("dropped")
        assert dropped["num_dropped"] == 20 - MAX_FRAMES
        assert dropped["times_s"] == list(range(1, 21 - MAX_FRAMES))[-MAX_FRAMES:]
        held.answer({"finish_reason": "length"})
        taken = [message["time_s"] for message in live.unread if message["type"] == "frame"]
        while taken[-1:] != [20]:
            taken.append(live.wait_for("frame")["time_s"])
        assert taken == list(range(21 - MAX_FRAMES, 21))
        metrics = httpx.get(f"{server.url}/metrics").text
        assert f'seesay_live_frames_total{{result="dropped"}} {20 - MAX_FRAMES}.0' in metrics
        assert f'seesay_live_frames_total{{result="taken"}} {1 + MAX_FRAMES}.0' in metrics


def test_only_so_many_questions_wait(engine: AsyncEngine) -> None:
    held = HeldEngine(engine)
    with serve(held, make_settings()) as server, open_live(server.url) as live:
        live.say(type="ask", text="first")
        held.submitted.get(timeout=60)
        for number in range(MAX_QUESTIONS + 2):  # one is held by the worker, which waits for the first answer
            live.say(type="ask", text="?", id=f"n{number}")
        said = live.wait_for("error")
        assert said["error"]["code"] == "too_many_questions" and said["id"] in (
            f"n{MAX_QUESTIONS}",
            f"n{MAX_QUESTIONS + 1}",
        )


# --- keys and origins ------------------------------------------------------------------------------------------------


def test_a_session_needs_a_key_where_the_server_has_some(engine: AsyncEngine) -> None:
    with serve(engine, make_settings(api_keys=["secret", "other"])) as server:
        status, error = refused(server.url)
        assert (status, error["code"]) == (401, "invalid_api_key")
        assert refused(server.url, additional_headers={"Authorization": "Bearer wrong"})[0] == 401
        with open_live(server.url, additional_headers={"Authorization": "Bearer secret"}) as live:
            assert live.push_and_wait(encode("red"))["type"] == "frame"
        # A browser cannot set headers.
        key = base64.urlsafe_b64encode(b"secret").decode().rstrip("=")
        with open_live(server.url, subprotocols=["seesay.live", f"seesay.key.{key}"]) as live:
            assert live.socket.subprotocol == "seesay.live", "the key is not sent back"
        for wrong in ("seesay.key.d3Jvbmc", "seesay.key.!!"):
            assert refused(server.url, subprotocols=["seesay.live", wrong])[0] == 401


@pytest.mark.parametrize(
    ("origin", "allowed", "is_taken"),
    [
        ("https://evil.example", (), False),
        ("null", (), False),
        ("https://app.example", ("https://app.example",), True),
        ("https://app.example.evil", ("https://app.example",), False),
        ("https://any.example", ("*",), True),
        ("own", (), True),
        ("own, other port", (), False),
        ("http://[", (), False),
    ],
)
def test_pages_of_other_origins_are_refused(
    engine: AsyncEngine, origin: str, allowed: tuple[str, ...], is_taken: bool
) -> None:
    with serve(engine, make_settings(cors_origins=allowed)) as server:
        own = {"own": server.url, "own, other port": "http://127.0.0.1:1"}
        options = {"origin": own.get(origin, origin)}
        if is_taken:
            with open_live(server.url, **options) as live:
                assert live.ready["type"] == "ready"
        else:
            status, error = refused(server.url, **options)
            assert (status, error["code"]) == (403, "origin_not_allowed") and "--allow-origins" in error["message"]


def test_other_requests_of_the_path_are_told_to_use_a_websocket(server: LiveServer) -> None:
    response = httpx.get(f"{server.url}/v1/live")
    assert response.status_code == 426 and response.headers["upgrade"] == "websocket"
    assert "does not pass WebSockets on" in response.json()["error"]["message"]
    offer = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "x"}
    assert httpx.get(f"{server.url}/health", headers=offer).status_code == 200, "there is none on another path"
    assert httpx.get(f"{server.url}/v1/live", headers=offer).status_code == 400, "the key is none"


# --- ends ------------------------------------------------------------------------------------------------------------


def test_an_idle_session_ends(engine: AsyncEngine) -> None:
    with serve(engine, make_settings(live_idle_timeout_s=1.0)) as server, open_live(server.url) as live:
        error = live.wait_for("error")["error"]
        assert error["code"] == "idle_timeout" and "1 s (live_idle_timeout_s)" in error["message"]
        with pytest.raises(ConnectionClosed):
            live.wait_for("nothing")
        assert live.socket.close_code == 1008
        wait_until(lambda: server.state.gate.num_sessions == 0)


@pytest.mark.parametrize("how", ["close", "abort"])
def test_a_client_that_hangs_up_leaves_nothing_behind(engine: AsyncEngine, how: str) -> None:
    held = HeldEngine(engine)
    with serve(held, make_settings()) as server:
        with open_live(server.url) as live:
            live.say(type="ask", text="describe")
            request_id, *_ = held.submitted.get(timeout=60)
            if how == "abort":
                live.socket.socket.shutdown(socket.SHUT_RDWR)
        assert held.aborted.get(timeout=60) == request_id
        wait_until(lambda: server.state.gate.num_sessions == server.state.answering.num_running == 0)


def test_a_client_that_does_not_read_ends_its_session_alone(server: LiveServer) -> None:
    """Errors that nobody reads: the buffers fill, then the session ends, and others are not held up."""
    key = base64.b64encode(bytes(16)).decode()
    head = f"GET /v1/live HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}"
    with socket.socket() as deaf, open_live(server.url) as other:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", server.port))
        deaf.sendall(f"{head}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        wait_until(lambda: server.state.gate.num_sessions == 2)
        text = json.dumps({"type": "x" * 200}).encode()
        message = b"\x81\xfe" + len(text).to_bytes(2, "big") + bytes(4) + text
        deaf.setblocking(False)

        def is_over() -> bool:
            with contextlib.suppress(OSError):
                deaf.send(message * 2)
            return server.state.gate.num_sessions == 1

        wait_until(is_over)
        assert other.push_and_wait(encode("red"))["type"] == "frame"


def test_a_server_that_shuts_down_finishes_answers_and_ends_sessions(engine: AsyncEngine) -> None:
    held = HeldEngine(engine)
    with serve(held, make_settings(drain_timeout_s=60)) as server:
        with open_live(server.url) as idle, open_live(server.url) as live:
            live.say(type="ask", text="describe", id="first")
            request_id, request, on_output = held.submitted.get(timeout=60)
            server.loop.call_soon_threadsafe(server.uvicorn.drain)
            assert idle.wait_for("error")["error"]["code"] == "shutting_down"
            with pytest.raises(ConnectionClosed):
                idle.wait_for("nothing")
            assert idle.socket.close_code == 1012
            late = live.ask("and now?", id="late")
            assert (late["id"], late["error"]["code"]) == ("late", "shutting_down")
            held.submitted.put((request_id, request, on_output))
            held.answer({"text": "a circle", "finish_reason": "stop", "usage": Usage(prompt_tokens=3)})
            done = live.wait_for("answer.done")
            assert (done["id"], done["text"]) == ("first", "a circle")
            with pytest.raises(ConnectionClosed):
                live.wait_for("nothing")
            assert live.socket.close_code == 1012
        wait_until(lambda: server.uvicorn.should_exit)


def test_an_answer_that_outlasts_the_drain_ends_with_an_error(engine: AsyncEngine) -> None:
    held = HeldEngine(engine)
    with serve(held, make_settings(drain_timeout_s=0.2)) as server, open_live(server.url) as live:
        live.say(type="ask", text="describe", id="first")
        held.submitted.get(timeout=60)
        server.loop.call_soon_threadsafe(server.uvicorn.drain)
        said = live.wait_for("error")
        assert (said["id"], said["error"]["code"]) == ("first", "shutting_down")


def test_prefills_are_not_counted_as_answers(engine: AsyncEngine) -> None:
    with serve(engine, make_settings()) as server, open_live(server.url) as live:
        for number in range(3):
            live.push_and_wait(encode("red"), number)
        live.ask("?", max_tokens=2)
        metrics = httpx.get(f"{server.url}/metrics").text
        assert 'seesay_answers_total{reason="length"} 1.0' in metrics

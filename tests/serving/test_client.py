"""`APIClient`, against a live server and against servers that misbehave."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from live_server import MODEL, LiveServer, make_settings, serve, wait_until

from seesay.engine.front.engine import AsyncEngine
from seesay.serving.client import APIClient, APIError


@pytest.fixture
def client(server: LiveServer) -> Iterator[APIClient]:
    with APIClient(server.url) as client:
        yield client


def test_models_and_health(client: APIClient, server: LiveServer) -> None:
    from seesay import __version__

    assert client.available_models == [MODEL]
    assert client.is_healthy()
    assert client.version() == __version__
    assert repr(client) == f"APIClient({server.url!r})"


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_addresses_in_any_form(server: LiveServer, suffix: str) -> None:
    with APIClient(server.url.replace("127.0.0.1", "0.0.0.0").removeprefix("http://") + suffix) as client:
        assert client.available_models == [MODEL]


def test_chat_completions(client: APIClient) -> None:
    (whole,) = client.chat_completions_v1(MODEL, "the game", temperature=0, max_tokens=6)
    messages = [{"role": "user", "content": "the game"}]
    chunks = list(client.chat_completions_v1(MODEL, messages, temperature=0, max_tokens=6, stream=True))
    streamed = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert whole["choices"][0]["message"]["content"] == streamed != ""


def test_further_arguments_are_fields(client: APIClient) -> None:
    (answer,) = client.chat_completions_v1(MODEL, "the game", max_tokens=3, return_token_ids=True, min_new_tokens=3)
    assert len(answer["choices"][0]["token_ids"]) == 3
    with pytest.raises(APIError, match="no_such_field") as caught:
        list(client.chat_completions_v1(MODEL, "x", no_such_field=1))
    assert caught.value.status == 400 and caught.value.param == "no_such_field"


def test_completions(client: APIClient) -> None:
    (whole,) = client.completions_v1(MODEL, "the game", temperature=0, max_tokens=6)
    chunks = list(client.completions_v1(MODEL, "the game", temperature=0, max_tokens=6, stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"] != ""


def test_interactive(client: APIClient) -> None:
    (first,) = client.chat("one", 501, request_output_len=4, temperature=0)
    assert first[1] == 4 and first[2] == "length"
    (second,) = client.chat_interactive_v1(
        "two", session_id=501, interactive_mode=True, request_output_len=4, temperature=0
    )
    assert second["history_tokens"] > 0
    pieces = list(client.chat("three", 501, stream=True, request_output_len=4, temperature=0))
    assert pieces[-1][1:] == (4, "length")
    client.end_session(501)
    (again,) = client.chat_interactive_v1(
        "one", session_id=501, interactive_mode=True, request_output_len=4, temperature=0
    )
    assert again["history_tokens"] == 0


def test_tokens(client: APIClient) -> None:
    ids, length = client.encode("the game")
    assert length == len(ids) > 0
    assert client.encode(["the game", "x"])[1][0] == length
    assert client.encode("the game", do_preprocess=True)[1] > length
    assert client.decode(ids) == "the game"
    (answer,) = client.generate(input_ids=ids, max_tokens=3, temperature=0)
    assert len(answer["output_ids"]) == 3


def test_a_stream_that_is_left_stops_its_request(client: APIClient, server: LiveServer) -> None:
    chunks = client.chat_completions_v1(MODEL, "go", temperature=0, max_tokens=400, ignore_eos=True, stream=True)
    next(chunks)
    chunks.close()
    wait_until(lambda: server.state.answering.num_running == 0)


def test_errors_say_what_to_do(client: APIClient) -> None:
    with pytest.raises(APIError, match="'nope' does not exist") as caught:
        list(client.chat_completions_v1("nope", "x"))
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    with pytest.raises(APIError, match="messages"):
        list(client.chat_completions_v1(MODEL, [], stream=True))


def test_keys(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(engine, make_settings(api_keys=("secret",))) as server:
        with APIClient(server.url) as client, pytest.raises(APIError, match="no API key"):
            _ = client.available_models
        with APIClient(server.url, "secret") as client:
            assert client.available_models == [MODEL]
        monkeypatch.setenv("SEESAY_API_KEY", "secret")
        with APIClient(server.url) as client:
            assert client.available_models == [MODEL]


def test_no_server() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    with APIClient(f"http://127.0.0.1:{port}") as client:
        assert not client.is_healthy()
        with pytest.raises(APIError, match="is it running") as caught:
            _ = client.available_models
    assert caught.value.status is None


@pytest.mark.parametrize("url", ["ftp://x", "http://[", "http://"])
def test_bad_addresses(url: str) -> None:
    with pytest.raises(APIError):
        _ = APIClient(url).available_models


@contextlib.contextmanager
def misbehaving(answer: bytes) -> Iterator[APIClient]:
    """A client of a server that says this to the first request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def reply() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=reply, daemon=True)
        thread.start()
        with APIClient(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=5) as client:
            yield client
        thread.join(60)


def respond(body: bytes, kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


EVENT = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": null}]}\n\n'
SSE = "text/event-stream; charset=utf-8"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 5\r\n\r\noops!", "502"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", "not with a JSON object"),
        (respond(b"<html>Sign in</html>", "text/html"), r"200 \(text/html\).* seesay server"),
        (respond(b"[1]"), "not with a JSON object"),
        (respond(b'{"a": 1}'), "no 'version'"),
        (respond(b'{"error": {"message": "out of paper"}}'), "out of paper"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{", "broke"),
        (b"nonsense\r\n\r\n", "broke"),
        (b"", "broke"),
    ],
)
def test_servers_that_misbehave(answer: bytes, message: str) -> None:
    with misbehaving(answer) as client, pytest.raises(APIError, match=message):
        client.version()


@pytest.mark.parametrize(
    ("answer", "num_chunks", "message"),
    [
        (respond(EVENT, SSE), 1, "broke off: the stream ended without"),
        (respond(EVENT + EVENT[:30] + b"\n\n", SSE), 1, "broke off: an event of the stream is incomplete"),
        (respond(EVENT + b"data: [1]\n\n", SSE), 1, "not a JSON object"),
        (respond(b"", SSE), 0, "broke off"),
        (respond(b"<html>Sign in</html>", "text/html"), 0, "text/html"),
        (respond(b'{"choices": []}'), 0, "did not answer with a stream of events"),
        (respond(EVENT, SSE).replace(b"content-length: ", b"content-length: 9"), 1, "broke"),
        (respond(EVENT + b'data: {"error": {"message": "out of paper"}}\n\n', SSE), 1, "out of paper"),
    ],
)
def test_streams_that_break_off(answer: bytes, num_chunks: int, message: str) -> None:
    got = []
    with misbehaving(answer) as client, pytest.raises(APIError, match=message):
        for chunk in client.chat_completions_v1(MODEL, "x", stream=True):
            got.append(chunk)
    assert len(got) == num_chunks


def test_a_closed_client_says_so(server: LiveServer) -> None:
    client = APIClient(server.url)
    chunks = client.chat_completions_v1(MODEL, "go", max_tokens=300, ignore_eos=True, stream=True)
    next(chunks)
    client.close()
    client.close()
    with pytest.raises(APIError, match="client is closed"):
        list(chunks)
    for ask in (
        client.is_healthy,
        client.version,
        lambda: client.available_models,
        lambda: client.encode("x"),
        lambda: next(client.generate("x")),
        lambda: next(client.chat_completions_v1(MODEL, "x", stream=True)),
    ):
        with pytest.raises(APIError, match="client is closed"):
            ask()

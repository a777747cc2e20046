"""Bodies that would be large as objects are refused by their bytes, whatever the pieces they arrive in; large ones are
checked in a thread; nothing is worse than linear."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import signal
import statistics
import threading
import time
import tracemalloc
from typing import Any

import httpx
import pytest
from cpu_time import check_cpu_s, measure_cpu_s
from fastapi import Request
from live_server import make_data_url, make_settings, wait_until
from pydantic import ValidationError
from pydantic_core import from_json

from seesay.config import MediaLimits
from seesay.engine.front.engine import AsyncEngine
from seesay.processors.text.long_text import has_more_tokens
from seesay.serving.anthropic.content import read_conversation
from seesay.serving.app import create_app
from seesay.serving.errors import ApiError
from seesay.serving.http import bodies, body_shape
from seesay.serving.http.body_shape import BodyShape
from seesay.serving.openai.protocol import ChatCompletionRequest
from seesay.serving.server import run_server

CHAT = "/v1/chat/completions"
SIZE = 2_000_000


def code_of(body: bytes, *, piece_bytes: int = 1 << 30, **options: Any) -> str | None:
    """What the shape of a body is refused with, when it comes in such pieces; None when it is not."""
    shape = BodyShape(**options)
    try:
        for start in range(0, len(body), piece_bytes):
            shape.add(body[start : start + piece_bytes])
    except ApiError as error:
        assert error.status_code == 400
        return error.message.partition(":")[0]
    return None


@pytest.mark.parametrize("field", ["metadata", "logit_bias", "stream_options", "unknown", ""])
def test_the_report_of_a_fault_does_not_copy_a_long_key(field: str) -> None:
    """Pydantic copies a key into the place of each fault, several times."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
    key = "a" * 100_000
    body |= {field: {key: 1}} if field else {key: 1}
    with pytest.raises(ValidationError) as caught:
        ChatCompletionRequest.model_validate(body)
    assert all(key not in place for error in caught.value.errors() for place in error["loc"] if isinstance(place, str))


# --- shapes ----------------------------------------------------------------------------------------------------------

REFUSED = {
    "numbers": (b"[" + b"3," * (1 << 18) + b"3]", "values"),
    "lists": (b"[" + b"[]," * (1 << 14) + b"3]", "arrays and objects"),
    "objects": (b"[" + b"{}," * (1 << 14) + b"3]", "arrays and objects"),
    "texts": (b"[" + b'"a",' * (1 << 16) + b'"a"]', "strings"),
    "quotes": (b'"' * (1 << 20), "strings"),
    "blanks": (b" " * (1 << 22), "bytes outside of strings"),
    "escapes": (b'"' + b'\\"' * (1 << 21) + b'"', "backslashes"),
    "one wide character": (b'"' + b"a" * (5 << 20) + "😀".encode() + b'"', "not ASCII"),
    "one escaped character": (b'"' + b"a" * (5 << 20) + b'\\u4e00"', "not ASCII"),
    "many wide texts": (b"[" + b",".join([b'"' + b"a" * 99_000 + "é".encode() + b'"'] * 50) + b"]", "not ASCII"),
    "nested lists": (b"[" * 65 + b"]" * 65, "nested"),
    "nested objects": (b'{"a":' * 65 + b"1" + b"}" * 65, "nested"),
}  # fmt: skip


@pytest.mark.parametrize("piece_bytes", [7, 1000, 1 << 16, 1 << 30])
@pytest.mark.parametrize(("body", "what"), REFUSED.values(), ids=REFUSED)
def test_what_would_be_large_is_refused_by_its_bytes(body: bytes, what: str, piece_bytes: int) -> None:
    if piece_bytes == 7 and len(body) > 1 << 20:
        pytest.skip("takes long in small pieces")
    assert what in (code_of(body, piece_bytes=piece_bytes) or "")


ACCEPTED = {
    "a picture": b'"' + b"QUJD" * (4 << 20) + b'"',
    "a picture as PHP escapes it": b'"' + (b"QUJD" * 15 + b"\\/AAA") * 250_000 + b'"',
    "brackets in a text": json.dumps("[{,:" * 400_000).encode(),
    "quotes in a text": json.dumps('say "yes" ' * 50_000).encode(),
    "a long Chinese text": json.dumps("圆形" * 600_000, ensure_ascii=False).encode(),
    "a picture beside a wide text": json.dumps(["é" * 1000, "QUJD" * (2 << 20), "é"], ensure_ascii=False).encode(),
    "as deep as allowed": b"[" * 64 + b"]" * 64,
    "as many numbers as allowed": b"[" + b"3," * ((1 << 18) - 1) + b"3]",
}


@pytest.mark.parametrize("piece_bytes", [999, 1 << 16, 1 << 30])
@pytest.mark.parametrize("body", ACCEPTED.values(), ids=ACCEPTED)
def test_long_texts_are_not(body: bytes, piece_bytes: int) -> None:
    assert code_of(body, piece_bytes=piece_bytes) is None
    json.loads(body)


def test_counts_are_those_of_the_parsed_body() -> None:
    """Whatever quotes, escapes and brackets stand in texts, and wherever a body is cut."""
    rng = random.Random(1)
    letters = ['"', "\\", "[", "]", "{", "}", ",", ":", "a", "é", "😀", "\n", "/"]

    def make(depth: int) -> Any:
        kind = rng.random()
        if depth < 4 and kind < 0.3:
            return [make(depth + 1) for _ in range(rng.randint(0, 4))]
        if depth < 4 and kind < 0.6:
            return {text(): make(depth + 1) for _ in range(rng.randint(0, 4))}
        return rng.choice([1, -2.5, True, None]) if kind < 0.7 else text()

    def text() -> str:
        return "".join(rng.choices(letters, k=rng.randint(0, 12)))

    def count(value: Any, depth: int = 1) -> tuple[int, int, int]:
        """Containers, strings and depth."""
        if isinstance(value, str):
            return 0, 1, depth - 1
        if not isinstance(value, list | dict):
            return 0, 0, depth - 1
        keys = len(value) if isinstance(value, dict) else 0
        inner = [count(item, depth + 1) for item in (value.values() if isinstance(value, dict) else value)]
        containers, strings = 1 + sum(i[0] for i in inner), keys + sum(i[1] for i in inner)
        return containers, strings, max([depth, *(i[2] for i in inner)])

    for _ in range(500):
        value = make(0)
        content = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode()
        shape, deepest, start = BodyShape(), 0, 0
        while start < len(content):
            stop = start + rng.randint(1, 9)
            shape.add(content[start:stop])
            deepest, start = max(deepest, shape._depth), stop
        containers, strings, depth = count(value)
        assert (shape._num_containers, shape._num_quotes, shape._depth) == (containers, 2 * strings, 0)
        assert deepest <= depth and not shape._is_in_string


@pytest.mark.parametrize("content", [b"QUJD" * (2 << 20), (b"a" * 62 + b"\\n") * (3 << 16)], ids=["plain", "escapes"])
def test_counting_is_linear(content: bytes) -> None:
    """The last pieces of a long text cost what the first ones cost: what came before is neither copied nor read."""
    shape, took_s = BodyShape(), list[float]()
    shape.add(b'"')
    for start in range(0, len(content), 1 << 14):
        piece = content[start : start + (1 << 14)]
        began = time.thread_time()
        shape.add(piece)
        took_s.append(time.thread_time() - began)
    quarter = len(took_s) // 4
    first, last = statistics.median(took_s[:quarter]), statistics.median(took_s[-quarter:])
    assert last < 3 * first, f"a piece takes {last * 1e6:.0f} us at the end, {first * 1e6:.0f} us at the beginning"


# --- over HTTP -------------------------------------------------------------------------------------------------------


async def post(http: httpx.AsyncClient, path: str, content: bytes) -> httpx.Response:
    return await http.post(path, content=content, headers={"content-type": "application/json"})


def nest(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("depth", [60, 64, 480, 5000])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, '{"messages":[{"role":"user","content":"hi"}],"max_tokens":1,"chat_template_kwargs":{"a":%s}}'),
        (CHAT, '{"messages":[{"role":"assistant","content":"hi","tool_calls":[{"a":%s}]}],"max_tokens":1}'),
        (CHAT, '{"messages":[{"role":"user","content":%s}],"max_tokens":1}'),
        ("/v1/messages", '{"messages":[{"role":"user","content":%s}],"max_tokens":1}'),
        ("/v1/responses", '{"input":%s}'),
        ("/v1/completions", '{"prompt":%s}'),
        ("/tokenize", '{"messages":[{"role":"user","content":"hi"}],"chat_template_kwargs":{"a":%s}}'),
        ("/detokenize", '{"tokens":%s}'),
    ],
)
async def test_deep_nesting_is_the_clients_fault(http: httpx.AsyncClient, path: str, body: str, depth: int) -> None:
    response = await post(http, path, (body % nest(depth)).encode())
    assert response.status_code in (200, 400), response.text
    if depth >= 64:
        assert response.status_code == 400 and "nested too deeply" in response.text


@pytest.mark.parametrize(
    ("path", "head", "item", "tail"),
    [
        ("/v1/completions", '{"prompt":[', "3,", "3]}"),
        ("/v1/completions", '{"prompt":[', "{},", "3]}"),
        ("/v1/completions", '{"prompt":[', "[3],", "[3]]}"),
        ("/v1/completions", '{"prompt":"hi","stop":[', "3,", '"a"]}'),
        ("/v1/embeddings", '{"input":[', "[],", "[3]]}"),
        (CHAT, '{"messages":[{"role":"user","content":[', "[],", "[]]}]}"),
        (CHAT, '{"messages":[', '{"role":"user","content":"a"},', '{"role":"user","content":"a"}]}'),
        ("/v1/messages", '{"max_tokens":1,"messages":[', '{"role":"user","content":"a"},', '{"role":"user"}]}'),
        ("/detokenize", '{"tokens":[', "3,", "3]}"),
        ("/generate", '{"input_ids":[', "-1,", "3]}"),
        ("/tokenize", '{"prompt":"', "how many? ", '"}'),
        ("/v1/completions", '{"echo":true,"prompt":"', "how many? ", '"}'),
        ("/v1/messages/count_tokens", '{"messages":[{"role":"user","content":"', "how many? ", '"}]}'),
        (CHAT, '{"messages":[{"role":"user","content":"', "how many? ", '"}]}'),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [SIZE // 8, SIZE])
async def test_large_bodies_cost_little(
    http: httpx.AsyncClient, path: str, head: str, item: str, tail: str, size: int
) -> None:
    """Python objects of at most 4 times the body, or 16 MB, and no pause of the event loop beside it."""
    content = (head + item * (size // len(item)) + tail).encode()
    await post(http, path, b"{}")
    tracemalloc.start()
    try:
        response = await post(http, path, content)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert response.status_code == 400 or path == "/detokenize", response.text[:300]
    assert peak < max(4 * len(content), 16 << 20), f"{peak / len(content):.1f} times the body"


async def test_large_bodies_are_checked_in_a_thread(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop goes on meanwhile, and small ones do not go there."""
    threads: list[str] = []
    held = threading.Event()

    def parse(content: Any) -> Any:
        threads.append(threading.current_thread().name)
        assert held.wait(60)
        return from_json(content)

    monkeypatch.setattr(bodies, "from_json", parse)
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}).encode()
    waiting = asyncio.ensure_future(post(http, CHAT, body + b" " * 20_000))
    while not threads:
        await asyncio.sleep(0.01)
    assert (await http.get("/health")).status_code == 200 and not waiting.done()
    held.set()
    assert (await waiting).status_code == 200
    assert (await post(http, CHAT, body)).status_code == 200
    assert threads[0].startswith("seesay-bodies") and threads[1] == threading.current_thread().name


async def test_bytes_of_a_body_are_freed_when_it_is_parsed(http: httpx.AsyncClient) -> None:
    picture = make_data_url(size=(900, 600))
    part = {"type": "image_url", "image_url": {"url": picture}}
    body = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1}
    kept: list[bytearray] = []
    receive = bodies._receive

    async def keep(http: Request, shape: BodyShape) -> bytearray:
        kept.append(await receive(http, shape))
        assert len(kept[0]) > 1_000_000
        return kept[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "_receive", keep)
        response = await http.post(CHAT, json=body)
    assert response.status_code == 200 and kept == [bytearray()]


async def test_each_prompt_counts_before_any_is_looked_at(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/completions", json={"prompt": ["a"] * 1000 + [None]})
    assert "1000" in response.json()["error"]["message"] or "1001" in response.json()["error"]["message"]


async def test_faults_are_found_one_at_a_time(http: httpx.AsyncClient) -> None:
    """Of thousands of wrong entries the first is named."""
    for path, body, param in (
        ("/v1/completions", {"prompt": "a", "stop": [3] * 60_000}, "stop[0]"),
        ("/v1/completions", {"prompt": "a", "stop": "a" * 20_000}, "stop"),
        ("/v1/completions", {"prompt": "a", "stop": ["a" * 1000] * 20}, "stop"),
        ("/generate", {"prompt": "a", "image_data": ["data:,"] * 30_000}, "image_data"),
        ("/v1/chat/interactive", {"prompt": "a", "image_url": ["data:,"] * 30_000}, "image_url"),
        ("/v1/completions", {"prompt": "a", "stop_token_ids": [-1] * 200_000}, "stop_token_ids[0]"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {str(i): "x" for i in range(30_000)}}, "logit_bias"),
        ("/v1/completions", {"prompt": [5, 5, "a"] + [7] * 1000}, "prompt[2]"),
        ("/v1/completions", {"prompt": ["a", [5]]}, "prompt[1]"),
        ("/v1/completions", {"prompt": [[5], [True]]}, "prompt[1][0]"),
        ("/v1/embeddings", {"input": [5.0]}, "input[0]"),
        (CHAT, {"messages": [], "metadata": {str(i): "x" for i in range(20)}}, "metadata"),
        ("/v1/responses", {"input": "a", "user": "a" * 2000}, "user"),
        ("/v1/responses", {"input": "a", "metadata": {"a": "a" * 600}}, "metadata.a"),
        (CHAT, {"messages": [], **{f"x{i}": 1 for i in range(30_000)}}, None),
    ):
        response = await http.post(path, json=body)
        assert response.status_code == 400 and len(response.content) < 1000
        assert response.json()["error"]["param"] == param, response.text


# --- linear ----------------------------------------------------------------------------------------------------------


def test_turns_of_one_role_are_merged_in_linear_time() -> None:
    def read(num: int) -> Any:
        return read_conversation(None, [{"role": "user", "content": "a"}] * num, MediaLimits.for_server())

    (turn,) = read(1000)
    assert len(turn.parts) == 1000
    # Eight times as many turns. Copying the turns so far for each of them would take about thirty times as long.
    check_cpu_s(lambda: read(40_000), 16 * measure_cpu_s(lambda: read(5000)))


def test_a_text_is_refused_without_tokenizing_all_of_it(engine: AsyncEngine) -> None:
    tokenizer = engine.tokenizer
    short, long = "how many? " * 2000, "how many? " * 200_000
    limit = engine.session_len
    assert has_more_tokens(tokenizer.backend, long, limit) and not has_more_tokens(
        tokenizer.backend, "how many? ", limit
    )
    short_s = measure_cpu_s(lambda: tokenizer.encode(short))
    check_cpu_s(lambda: has_more_tokens(tokenizer.backend, long, limit), 5 * short_s)


def test_limits_of_shapes_leave_room_for_prompts_of_token_ids(engine: AsyncEngine) -> None:
    assert 2 * engine.session_len <= body_shape.MAX_VALUES
    assert code_of(b"[" + b"3," * 600_000 + b"3]", max_values=700_000) is None


async def test_a_client_that_leaves_inside_a_large_body_leaves_nothing(engine: AsyncEngine) -> None:
    app = create_app(engine, make_settings())
    messages = iter([{"type": "http.request", "body": b'{"messages": "' + b"a" * 100_000, "more_body": True}])

    async def receive() -> Any:
        return next(messages, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        pass

    headers = [(b"content-type", b"application/json")]
    scope = {
        "type": "http", "method": "POST", "path": CHAT, "raw_path": CHAT.encode(), "query_string": b"",
        "headers": headers, "http_version": "1.1", "scheme": "http", "root_path": "", "client": None, "server": None,
    }  # fmt: skip
    await app(scope, receive, send)
    wait_until(lambda: app.state.server.gate.num_inside == 0 and app.state.server.gate.num_bytes == 0)


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/ld+json"])
async def test_types_of_json_are_read(http: httpx.AsyncClient, kind: str) -> None:
    response = await http.post("/tokenize", content=b'{"prompt": "a"}', headers={"content-type": kind})
    assert response.status_code == 200 and response.json()["count"] > 0


@pytest.mark.parametrize("kind", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"])
@pytest.mark.parametrize("path", [CHAT, "/tokenize", "/v1/messages"])
async def test_other_types_are_refused(http: httpx.AsyncClient, kind: str | None, path: str) -> None:
    """A page of another origin may send them without asking first."""
    headers = {} if kind is None else {"content-type": kind}
    response = await http.post(path, content=b'{"prompt": "a"}', headers=headers)
    assert response.status_code == 400 and "Content-Type: application/json" in response.text


async def test_small_bodies_may_not_be_nested_too_deeply(http: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/json"}
    response = await http.post(CHAT, content=b"[" * 65 + b"]" * 65, headers=headers)
    assert response.status_code == 400 and response.json()["error"]["code"] == "body_too_complex"
    flat = {"messages": [{"role": "user", "content": "hi"}], "unknown": [[]] * 100}
    response = await http.post(CHAT, json=flat)
    assert response.json()["error"]["code"] == "unknown_parameter"


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
async def test_routes_with_bodies_refuse_other_methods(http: httpx.AsyncClient, path: str) -> None:
    response = await http.get(path)
    assert response.status_code == 405 and response.headers["allow"] == "POST"
    assert (await http.post(f"{path}/")).status_code in (307, 404)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": ["a"] * 5000}]}),
        (CHAT, {"messages": [{"role": "user", "content": "a"}] * 5000}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}] * 5000, "max_tokens": 1}),
    ],
)
async def test_more_turns_and_parts_than_tokens_never_reach_the_template(
    engine: AsyncEngine, http: httpx.AsyncClient, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(engine.chat_template), "render", lambda *_, **__: pytest.fail("it was rendered"))
    response = await http.post(path, json=body)
    assert response.status_code == 400 and "at most 4096 are taken" in response.text


def test_garbage_collection_does_not_visit_what_was_there_at_the_start(engine: AsyncEngine) -> None:
    """Many small objects, such as the parts of a message, make Python collect garbage, which holds the GIL."""
    num_frozen: list[int] = []
    gc.unfreeze()
    thresholds = gc.get_threshold()

    def end() -> None:
        num_frozen.append(gc.get_freeze_count())
        assert gc.get_threshold()[0] > thresholds[0]
        signal.raise_signal(signal.SIGTERM)

    before = gc.get_freeze_count()
    run_server(engine, make_settings(), on_ready=end)
    assert num_frozen[0] > 100_000 > before == gc.get_freeze_count()
    assert gc.get_threshold() == thresholds

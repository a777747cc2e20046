"""A request that is aborted ends at once with one final delta, whatever is done for it, and leaves nothing behind: no
block, no pinned embedding, no busy thread, nothing that a later request would meet."""

from __future__ import annotations

import io
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asking import ask, loop_of, make_picture, parse
from waiting import TIMEOUT_S, wait_until

from seesay.config import EngineConfig, MediaLimits
from seesay.engine.front.engine import AsyncEngine
from seesay.values import OutputDelta

LONG: dict[str, Any] = {"max_new_tokens": 400, "ignore_eos": True}
PROMPT = ("what is it? ", make_picture(40, 60, 5))


def encode(picture: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


class Gate:
    """Holds the threads that pass it until it is opened."""

    def __init__(self) -> None:
        self.reached, self._opened = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        self.reached.set()
        assert self._opened.wait(TIMEOUT_S)

    def open(self) -> None:
        self._opened.set()


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Callable[[str], Path]) -> Iterator[AsyncEngine]:
    config = EngineConfig(
        device_type="cpu", block_size=4, max_batch_size=1, max_prefill_token_num=16, session_len=512, num_gpu_blocks=160
    )
    limits = MediaLimits(allow_private_hosts=True, timeout_s=600.0)
    with AsyncEngine(str(tiny_checkpoint("qwen2_5_vl")), backend_config=config, media_limits=limits) as engine:
        yield engine


@pytest.fixture
def nothing_left(engine: AsyncEngine) -> Iterator[None]:
    """Waits until nothing is held any more, and asks again what was asked before."""
    [expected] = ask(engine, parse([PROMPT], max_new_tokens=3, ignore_eos=True))
    yield
    core, media = loop_of(engine), engine._preparer._media
    for pool in (
        engine._preparation._threads[False]._pool,
        engine._preparation._threads[True]._pool,
        media._fetchers._pool,
        media._decoders,
    ):
        wait_until(lambda calls=pool._calls: not calls.num_unfinished)  # type: ignore[misc]
    wait_until(lambda: not engine._preparation.open.waiting and not engine._delivery._live and not core._live)
    wait_until(lambda: core.stats().num_running + core.stats().num_waiting + core.stats().num_encode_queued == 0)
    wait_until(lambda: core.stats().num_used_kv_blocks == 0)
    wait_until(lambda: core.embeddings.store.stats().pinned_embedding_bytes == 0)
    wait_until(lambda: not core.embeddings._expected)
    assert core.stats().num_wanted_embedding_rows == 0
    [again] = ask(engine, parse([PROMPT], max_new_tokens=3, ignore_eos=True))
    assert again.token_ids == expected.token_ids


def begin(engine: AsyncEngine, prompt: Any, **options: Any) -> tuple[int, queue.SimpleQueue[OutputDelta]]:
    arrived: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
    [request_id] = engine.submit_batch(parse([prompt], **{**LONG, **options}), arrived.put)
    return request_id, arrived


def abort(engine: AsyncEngine, request_id: int, arrived: queue.SimpleQueue[OutputDelta]) -> list[OutputDelta]:
    """Abort a request twice; return its deltas. Nothing follows the final one."""
    engine.abort(request_id)
    engine.abort(request_id)
    deltas = [arrived.get(timeout=TIMEOUT_S)]
    while deltas[-1].finish_reason is None:
        deltas.append(arrived.get(timeout=TIMEOUT_S))
    assert deltas[-1].finish_reason == "abort" and deltas[-1].error is None
    assert arrived.empty()
    return deltas


@pytest.mark.usefixtures("nothing_left")
def test_waiting_for_a_thread(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not even prepared then."""
    gate, prepared = Gate(), list[int]()
    prepare = engine._preparer.prepare

    def watch(asked: Any, *arguments: Any) -> Any:
        prepared.extend(asked)
        gate.pass_through()
        return prepare(asked, *arguments)

    monkeypatch.setattr(engine._preparer, "prepare", watch)
    num_threads = engine._preparation._threads[False]._pool._max_threads
    held = [begin(engine, f"text {k}", max_new_tokens=1) for k in range(num_threads + 1)]
    assert gate.reached.wait(TIMEOUT_S)
    late_id, late = held.pop()
    [only] = abort(engine, late_id, late)
    gate.open()
    for _, arrived in held:
        assert arrived.get(timeout=TIMEOUT_S).finish_reason == "length"
    assert only.usage is None and late.empty()
    assert late_id not in prepared and len(prepared) == num_threads


@pytest.mark.usefixtures("nothing_left")
def test_fetching_a_picture(engine: AsyncEngine) -> None:
    """From a server that says nothing. The final delta does not wait for it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/picture.png"
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what is it?"}]
        request_id, arrived = begin(engine, [{"role": "user", "content": content}])
        connection, _ = server.accept()
        abort(engine, request_id, arrived)
        with connection:
            while connection.recv(4096):  # the engine's end is closed, too
                pass


def make_slow_prompt(port: int, num_pictures: int = 1) -> list[dict[str, Any]]:
    url = f"http://127.0.0.1:{port}/picture.png"
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": f"{url}?{k}"}} for k in range(num_pictures)
    ]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "what is it?"}]}]


@pytest.mark.usefixtures("nothing_left")
def test_pictures_that_nobody_waits_for_hold_up_nobody(engine: AsyncEngine) -> None:
    """Twice as many as there are threads, each from a server that says nothing for ten minutes."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:
        prompt = make_slow_prompt(server.getsockname()[1])
        slow = [begin(engine, prompt) for _ in range(64)]
        server.accept()[0].close()
        for request_id, _ in slow:
            engine.abort(request_id)
        assert all(arrived.get(timeout=TIMEOUT_S).finish_reason is not None for _, arrived in slow)
        [answer] = ask(engine, parse([PROMPT], max_new_tokens=1, ignore_eos=True))
        assert answer.finish_reason == "length"


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("num_pictures", [1, 40], ids=["many requests", "one with many"])
def test_one_owner_cannot_hold_all_threads(engine: AsyncEngine, num_pictures: int) -> None:
    """While its pictures do not come, those of others are prepared."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:
        prompt = make_slow_prompt(server.getsockname()[1], num_pictures)
        slow = [begin(engine, prompt) for _ in range(64 // num_pictures)]
        server.accept()[0].close()
        other = replace(parse([PROMPT], max_new_tokens=1, ignore_eos=True)[0], owner="another")
        answered: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
        engine.submit_batch([other], answered.put)
        assert answered.get(timeout=TIMEOUT_S).finish_reason == "length"
        for request_id, _ in slow:
            engine.abort(request_id)
        for _, arrived in slow:
            assert arrived.get(timeout=TIMEOUT_S).finish_reason is not None


@pytest.mark.usefixtures("nothing_left")
def test_answers_to_one_prompt_are_prepared_until_the_last_one_leaves(engine: AsyncEngine, tmp_path: Path) -> None:
    """The picture comes when one of two was aborted."""
    content = encode(PROMPT[1])
    with socket.create_server(("127.0.0.1", 0)) as server:
        [request] = parse([make_slow_prompt(server.getsockname()[1])], max_new_tokens=2, ignore_eos=True)
        arrived: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
        first, second = engine.submit_batch([request, request], arrived.put)
        connection, _ = server.accept()
        engine.abort(first)
        assert arrived.get(timeout=TIMEOUT_S).request_id == first
        with connection:
            connection.recv(4096)
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\n\r\n"
            connection.sendall(head.encode() + content)
        delta = arrived.get(timeout=TIMEOUT_S)
        while delta.finish_reason is None:
            delta = arrived.get(timeout=TIMEOUT_S)
        assert (delta.request_id, delta.finish_reason) == (second, "length"), delta


@pytest.mark.usefixtures("nothing_left")
def test_encoding_a_picture(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = loop_of(engine).embeddings.worker
    assert worker is not None
    gate, encode = Gate(), worker._encode

    def wait_and_encode(*arguments: Any) -> Any:
        gate.pass_through()
        return encode(*arguments)

    monkeypatch.setattr(worker, "_encode", wait_and_encode)
    request_id, arrived = begin(engine, ("what is it? ", make_picture(44, 60, 6)))
    assert gate.reached.wait(TIMEOUT_S)
    abort(engine, request_id, arrived)
    gate.open()


@pytest.mark.usefixtures("nothing_left")
def test_waiting_for_a_place(engine: AsyncEngine) -> None:
    first_id, first = begin(engine, "the game in the frame")
    assert first.get(timeout=TIMEOUT_S).text is not None
    request_id, arrived = begin(engine, PROMPT)
    wait_until(lambda: loop_of(engine).stats().num_waiting == 1)
    [only] = abort(engine, request_id, arrived)
    assert only.usage is not None and only.usage.completion_tokens == 0
    abort(engine, first_id, first)


@pytest.mark.usefixtures("nothing_left")
def test_in_the_middle_of_a_prompt(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, runner = Gate(), loop_of(engine)._runner
    launch = runner.launch
    chunks: list[int] = []

    def wait_and_launch(plan: Any, splices: Any) -> Any:
        chunks.extend(row.num_tokens for row in plan.rows)
        if len(chunks) == 2:
            gate.pass_through()
        return launch(plan, splices)

    monkeypatch.setattr(runner, "launch", wait_and_launch)
    request_id, arrived = begin(engine, "a new game in another frame " * 12)
    assert gate.reached.wait(TIMEOUT_S)
    engine.abort(request_id)
    gate.open()
    [only] = abort(engine, request_id, arrived)
    assert only.usage is not None and sum(chunks) < only.usage.prompt_tokens and not only.text


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("prompt", ["the frame of the game", PROMPT])
def test_in_the_middle_of_an_answer(engine: AsyncEngine, prompt: Any) -> None:
    request_id, arrived = begin(engine, prompt)
    first = arrived.get(timeout=TIMEOUT_S)
    deltas = [first, *abort(engine, request_id, arrived)]
    usage = deltas[-1].usage
    assert usage is not None and 0 < usage.completion_tokens < LONG["max_new_tokens"]
    assert usage.completion_tokens == sum(len(delta.token_ids) for delta in deltas)

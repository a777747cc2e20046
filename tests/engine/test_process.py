"""The engine in a process of its own: the same answers, and what is left when either process dies."""

from __future__ import annotations

import errno
import logging
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import faulty_engine
import forked_python
import numpy as np
import pytest
import torch
from asking import assert_same, join, make_picture, parse
from leftovers import end_renderers, list_files, list_threads, wait_until_no_more
from starlette.testclient import TestClient
from waiting import wait_until

from seesay.config import EngineConfig, GenerationConfig, VisionConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.front.response import Response
from seesay.engine.front.starting import CoreParts
from seesay.engine.opened_model import open_model
from seesay.engine.process.failures import describe_failure, restore_failure
from seesay.engine.process.link import LinkClosedError
from seesay.engine.process.origin import OwnProcess
from seesay.engine.process.remote.state import MAX_DEATHS
from seesay.engine.process.remote_core import ProcessCore
from seesay.errors import CheckpointError, ConfigError, ErrorCode, MissingExtraError, RequestError
from seesay.offline.pipeline import Pipeline
from seesay.serving import ServerSettings
from seesay.serving.app import create_app
from seesay.values import GenerationRequest, OutputDelta

FAMILY = "qwen2_5_vl"


def load(
    path: Path,
    *,
    own: bool,
    vision_config: VisionConfig | None = None,
    core_parts: CoreParts | None = None,
    **options: Any,
) -> AsyncEngine:
    config = EngineConfig(device_type="cpu", block_size=16, engine_process=own, **options)
    return AsyncEngine(str(path), backend_config=config, vision_config=vision_config, core_parts=core_parts)


def core_of(engine: AsyncEngine) -> ProcessCore:
    assert isinstance(engine.core, ProcessCore)
    return engine.core


def pid_of(engine: AsyncEngine) -> int:
    pid = core_of(engine).pid
    assert pid is not None
    return pid


def submit(engine: AsyncEngine, requests: Sequence[GenerationRequest]) -> tuple[list[int], queue.SimpleQueue[Any]]:
    arrived: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
    return engine.submit_batch(requests, arrived.put), arrived


def read(ids: Sequence[int], arrived: queue.SimpleQueue[Any], timeout_s: float = 120) -> list[Response]:
    """The whole answers of requests that were submitted: each has one final delta, and none behind it."""
    deltas: dict[int, list[OutputDelta]] = {request_id: [] for request_id in ids}
    left = set(ids)
    while left:
        delta = arrived.get(timeout=timeout_s)
        assert delta.request_id in left, "an output behind the final one"
        deltas[delta.request_id].append(delta)
        if delta.finish_reason is not None:
            left.remove(delta.request_id)
    return [join(found) for found in deltas.values()]


def ask(engine: AsyncEngine, requests: Sequence[GenerationRequest]) -> list[Response]:
    return read(*submit(engine, requests))


def is_over(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, empty. Shared memory has no name that could be left."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture(scope="module")
def path(tiny_checkpoint: Callable[[str], Path]) -> Path:
    return tiny_checkpoint(FAMILY)


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[AsyncEngine]:
    """One whose engine is a process."""
    with load(path, own=True) as engine:
        yield engine


@pytest.fixture(scope="module")
def thread_engine(path: Path) -> Iterator[AsyncEngine]:
    with load(path, own=False) as engine:
        yield engine


# --- the same answers -------------------------------------------------------------------------------------------------


def test_both_forms_stop_at_words(engine: AsyncEngine, thread_engine: AsyncEngine) -> None:
    words = [word for word in ask(thread_engine, parse(["a b"], max_new_tokens=12))[0].text.split() if word]
    for stop in words[:3]:
        config = GenerationConfig(max_new_tokens=12, stop_words=[stop], output_logits="all", logprobs=1)
        for streams in (True, False):
            requests = [replace(request, streams=streams) for request in parse(["a b"], config)]
            answers = [ask(one, requests)[0] for one in (engine, thread_engine)]
            assert answers[0].finish_reason == "stop"
            assert_same(*answers)


def test_the_pipeline_works_in_both_forms(engine: AsyncEngine, thread_engine: AsyncEngine) -> None:
    """Perplexity, streams and embeddings, which are made of prompt outputs."""
    results = []
    for one in (engine, thread_engine):
        pipe = Pipeline.from_engine(one)
        texts = ["the game", "a frame in the game"]
        losses = pipe.get_ppl([one.tokenize_text(text) for text in texts])
        config = GenerationConfig(max_new_tokens=9, ignore_eos=True)
        streamed = [
            (piece.index, piece.text, piece.finish_reason)
            for piece in pipe.stream_infer("stream this", gen_config=config)
        ]
        pooled = GenerationRequest(prompt="embed", gen_config=GenerationConfig(), pooling="mean")
        results.append((losses, streamed, ask(one, [pooled])[0].pooled.tolist()))
    assert results[0] == results[1]
    assert len(results[0][1]) >= 9


def test_errors_cross_as_they_are(engine: AsyncEngine) -> None:
    """Those of the frontend and those of the core."""
    too_long = parse(["a " * 4000], max_new_tokens=4)
    with pytest.raises(RequestError, match="session_len") as raised:
        raise ask(engine, too_long)[0].error or AssertionError
    assert raised.value.code is ErrorCode.CONTEXT_TOO_LONG
    processors = parse(["a"], logits_processors=[lambda _ids, logits: logits])
    error = ask(engine, processors)[0].error
    assert isinstance(error, RequestError) and error.param == "logits_processors"
    assert "engine_process=False" in str(error)
    assert ask(engine, parse(["b"], max_new_tokens=1))[0].error is None


def test_an_answer_is_aborted(engine: AsyncEngine) -> None:
    ids, arrived = submit(engine, parse(["go on"], max_new_tokens=1500, ignore_eos=True))
    first = arrived.get(timeout=120)
    assert first.finish_reason is None and first.token_ids
    engine.abort(ids[0])
    [answer] = read(ids, arrived)
    assert answer.finish_reason == "abort"
    wait_until(lambda: engine.stats().num_running == 0)


def test_many_threads_ask_at_once(engine: AsyncEngine, thread_engine: AsyncEngine) -> None:
    """Large pictures from all of them, some of them equal: each answer is its own, each picture is encoded once."""
    prompts = [(f"what is number {k}?", make_picture(250 + k % 4, 200, k % 4)) for k in range(16)]
    config = GenerationConfig(max_new_tokens=6, ignore_eos=True)
    expected = [ask(thread_engine, parse([prompt], config))[0].token_ids for prompt in prompts]
    before = engine.stats().total_encoder_items
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda prompt: ask(engine, parse([prompt], config))[0], prompts))
    assert [answer.token_ids for answer in answers] == expected
    wait_until(lambda: engine.stats().num_running == 0)
    assert engine.stats().total_encoder_items == before + 4


def test_features_are_sent_when_an_embedding_has_left(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The frontend leaves out pixels that the engine has the embedding of. Without a cache it never has for long. What
    the process logs goes to the loggers of this one."""
    options: dict[str, Any] = {"enable_prefix_caching": False, "num_gpu_blocks": 20}
    vision_config = VisionConfig(embedding_cache_bytes=0)
    with (
        caplog.at_level(logging.INFO, logger="seesay"),
        load(path, own=True, vision_config=vision_config, **options) as one,
    ):
        assert one.session_len == 320, "what the core settled"
        for words in ("KV cache: 20 blocks", "lowered to that"):
            assert any(words in record.getMessage() for record in caplog.records), words
        prompts = [("what?", make_picture(64, 64, 3))] * 6
        config = GenerationConfig(max_new_tokens=3, ignore_eos=True)
        answers = ask(one, parse(prompts, config))
        for prompt in prompts[:2]:
            answers += ask(one, parse([prompt], config))
        one.reset_caches()
        answers += ask(one, parse(prompts[:1], config))
        assert [answer.error for answer in answers] == [None] * len(answers)
        assert len({tuple(answer.token_ids) for answer in answers}) == 1


def test_the_engine_tells_what_it_knows_and_counts(engine: AsyncEngine) -> None:
    [answer] = ask(engine, parse([("seen before?", make_picture(99, 98, 97))], max_new_tokens=2))
    assert answer.media[0].is_cached is False
    [again] = ask(engine, parse([("seen before?", make_picture(99, 98, 97))], max_new_tokens=2))
    assert again.media[0].is_cached is True
    assert core_of(engine)._ledger.embeddings.encoded and not core_of(engine)._ledger.embeddings._sent
    stats = engine.stats()
    assert stats.num_kv_blocks > 0 and stats.total_step_tokens > 0 and stats.num_embeddings > 0
    engine.reset_caches()
    assert not core_of(engine)._ledger.embeddings.encoded
    assert engine.stats().num_embeddings == 0
    assert core_of(engine)._ledger.all_ids() == [] and not core_of(engine)._ledger._owners


# --- starting ---------------------------------------------------------------------------------------------------------


def test_a_caller_may_work_while_the_process_loads_and_ends_it_by_failing(path: Path) -> None:
    begun: list[int] = []

    def list_processes() -> set[int]:
        children = " ".join(file.read_text() for file in Path("/proc/self/task").glob("*/children"))
        command = b"seesay.engine.process.child"
        return {int(pid) for pid in children.split() if command in Path(f"/proc/{pid}/cmdline").read_bytes()}

    before = list_processes()

    def fail() -> None:
        wait_until(lambda: list_processes() > before)  # the child is a copy of this process first
        begun.extend(list_processes() - before)
        raise InterruptedError("enough")

    config = EngineConfig(device_type="cpu", engine_process=True)
    with forked_python.started(), pytest.raises(InterruptedError, match="enough"):
        AsyncEngine(str(path), backend_config=config, while_loading=fail)
    assert len(begun) == 1 and list_processes() == before


def test_a_failed_start_raises_what_it_raised(path: Path, tmp_path: Path, folder: Path) -> None:
    """The same error in both forms, and no process is left."""
    broken = tmp_path / "broken"
    shutil.copytree(path, broken)
    [weights] = broken.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-5000])
    with pytest.raises(CheckpointError):  # what the first start of a process opens stays for those that follow
        load(broken, own=True)
    end_renderers()
    files, threads = list_files(), list_threads()
    texts = []
    for own in (True, False):
        with pytest.raises(CheckpointError) as raised:
            load(broken, own=own)
        texts.append(str(raised.value))
    assert texts[0] == texts[1] and "safetensors" in texts[0]
    texts = []
    for own in (True, False):
        with pytest.raises(ConfigError) as found:
            AsyncEngine(str(path), backend_config=EngineConfig(device_type="cuda:77", engine_process=own))
        texts.append(str(found.value))
    assert texts[0] == texts[1]
    end_renderers()
    wait_until_no_more(list_files, files)
    wait_until_no_more(list_threads, threads)
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    "error",
    [
        CheckpointError("model.safetensors: truncated"),
        ConfigError("device_type='x': no"),
        MissingExtraError("clips", package="av", extra="video"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"),
        MemoryError("too little"),
        ValueError("a bug"),
        KeyError("k"),
        OSError(28, "No space left on device"),
        UnicodeDecodeError("utf8", b"\xff", 0, 1, "invalid"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_exceptions_are_restored(error: Exception) -> None:
    restored = restore_failure(describe_failure(error))
    assert str(error) in str(restored)
    if not isinstance(error, KeyError | UnicodeDecodeError):
        assert type(restored) is type(error) and str(restored) == str(error)


BOUNDARIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("random_seed", {"random_seed": 1 << 64}),
    ("max_new_tokens", {"max_new_tokens": 10**30}),
    ("max_new_tokens", {"max_new_tokens": 10**4000}),
    ("priority", {"priority": 2**100}),
    ("priority", {"priority": "high"}),
    ("cache_salt", {"cache_salt": "\ud800"}),
    ("continuation", {"continuation": (1, 10**6)}),
    ("continuation", {"continuation": (-1,)}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": 0}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": -2}),
    ("template_options", {"template_options": "continue_final"}),
    ("template_options", {"template_options": {3: True}}),
)


@pytest.mark.parametrize("own", [False, True], ids=["thread", "process"])
def test_values_beyond_their_limits_are_refused_by_name(own: bool, path: Path) -> None:
    """In every form of the engine, and the greatest ones that are allowed are taken."""
    with load(path, own=own) as engine:
        for name, change in BOUNDARIES:
            config = {"max_new_tokens": 2, **{k: v for k, v in change.items() if k in vars(GenerationConfig())}}
            request = replace(parse(["hi"], **config)[0], **{k: v for k, v in change.items() if k not in config})
            error = ask(engine, [request])[0].error
            assert isinstance(error, RequestError), change
            assert error.code is ErrorCode.INVALID_REQUEST and error.param == name, error
            assert error.message.startswith(f"{name} must be") and len(error.message) < 300, error
        largest = replace(
            parse(["hi"], max_new_tokens=2, random_seed=(1 << 64) - 1)[0],
            priority=(1 << 63) - 1, cache_salt="é" * 4096, truncate_prompt_tokens=-1, continuation=(1,),
        )  # fmt: skip
        answers = [ask(engine, [replace(largest, gen_config=replace(largest.gen_config, do_sample=True))])[0]]
        answers += ask(
            engine, parse(["hi"], max_new_tokens=engine.session_len, stop_token_ids=[*range(engine.vocab_size)])
        )
        assert all(answer.error is None for answer in answers)


# --- death ------------------------------------------------------------------------------------------------------------


def test_silence_is_reported_at_once_and_ends_with_a_restart(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the limits of a CPU's steps, which may take an hour, a process that was stopped is noticed in seconds. The
    first one is not killed, however long the requests here take meanwhile."""
    limit = "seesay.engine.process.remote.silence_watch.LIMIT_S"
    monkeypatch.setattr(limit, 3600.0)
    warm_up = parse(["warm up"], max_new_tokens=2)
    with load(path, own=True) as engine, TestClient(create_app(engine, ServerSettings())) as client:
        before = ask(engine, warm_up)[0]
        first = pid_of(engine)
        os.kill(first, signal.SIGSTOP)
        wait_until(lambda: engine.fault is not None)
        assert "said nothing" in client.get("/health").json()["error"]["message"]
        assert client.get("/ready").status_code == 503
        os.kill(first, signal.SIGCONT)
        wait_until(lambda: engine.fault is None)
        assert client.get("/ready").status_code == client.get("/health").status_code == 200
        assert_same(ask(engine, warm_up)[0], before)
        monkeypatch.setattr(limit, 8.0)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: core_of(engine).pid not in (None, first))
        assert_same(ask(engine, warm_up)[0], before)
        second = pid_of(engine)
        ids, arrived = submit(engine, parse(["go on"], max_new_tokens=1500, ignore_eos=True))
        assert arrived.get(timeout=120).finish_reason is None
        os.kill(second, signal.SIGSTOP)
        [lost] = read(ids, arrived)
        assert isinstance(lost.error, RequestError) and "said nothing" in str(lost.error)
        wait_until(lambda: engine.fault is None)
        assert pid_of(engine) != second
        assert_same(ask(engine, warm_up)[0], before)


def test_an_engine_that_dies_or_hangs_is_started_again_and_says_so(path: Path, folder: Path) -> None:
    """Killed, then stopped as if its interpreter never came back from a call, then killed where it cannot start."""
    may_start = threading.Event()  # so that nothing is answered before it is aborted
    may_start.set()

    class LateProcess(OwnProcess):
        def open(self) -> Any:
            assert may_start.wait(200)
            return super().open()

    with load(path, own=True, step_timeout_s=6.0, core_parts=CoreParts(make_origin=LateProcess)) as engine:
        ask(engine, parse([("warm up", make_picture(300, 300, 9))], max_new_tokens=2))  # what it starts once stays
        end_renderers()
        files = list_files()
        for sent, words in ((signal.SIGKILL, "died (signal 9)"), (signal.SIGSTOP, "said nothing")):
            first, num_restarts = pid_of(engine), engine.stats().total_engine_restarts
            prompts = [("go on", make_picture(300, 300, k)) for k in range(6)]
            ids, arrived = submit(engine, parse(prompts, max_new_tokens=900, ignore_eos=True))
            assert arrived.get(timeout=120).finish_reason is None
            wait_until(lambda: not engine._preparation.open.waiting)
            may_start.clear()
            os.kill(first, sent)
            wait_until(lambda: (found := engine.fault) is not None and "is started again" in found.reason)
            fault = engine.fault
            assert fault is not None and words in fault.reason
            waiting = submit(engine, parse(["meanwhile"], max_new_tokens=2, ignore_eos=True))
            gone = submit(engine, parse(["nobody waits"], max_new_tokens=2, ignore_eos=True))
            wait_until(lambda: not engine._preparation.open.waiting)
            engine.abort(gone[0][0])
            may_start.set()
            for answer in read(ids, arrived):
                assert isinstance(answer.error, RequestError) and answer.error.code is ErrorCode.INTERNAL
                assert words in str(answer.error) and "send the request again" in str(answer.error)
            assert read(*gone)[0].finish_reason == "abort"
            assert read(*waiting)[0].finish_reason == "length"
            assert engine.fault is None and pid_of(engine) != first and is_over(first)
            assert engine.stats().total_engine_restarts == num_restarts + 1
            assert core_of(engine)._ledger.all_ids() == []
        end_renderers()
        wait_until_no_more(list_files, files)
        LateProcess.module = "no.such.module"
        ids, arrived = submit(engine, parse(["go on"], max_new_tokens=1500, ignore_eos=True))
        arrived.get(timeout=120)
        os.kill(pid_of(engine), signal.SIGKILL)
        assert "died (signal 9)" in str(read(ids, arrived)[0].error)
        for prompt in ("held", "later"):
            answer = ask(engine, parse([prompt], max_new_tokens=2))[0]
            assert answer.finish_reason == "error" and "not started again" in str(answer.error)
        assert engine.fault is not None and "3 times" in engine.fault.reason and "status 1" in engine.fault.reason
        engine.reset_caches()  # there are none: nothing to wait for
    assert not list(folder.iterdir())


@pytest.mark.parametrize("deaf", ["engine", "front"])
def test_a_process_is_replaced_when_messages_cannot_be_sent(path: Path, deaf: str) -> None:
    """It lives, but takes nothing any more, or cannot tell what it computes."""
    children: list[Any] = []

    class KnownProcess(OwnProcess):
        def open(self) -> Any:
            children.append(super().open())
            return children[-1]

    def refuse(message: Any, done: Any = None) -> None:
        raise LinkClosedError(f"nobody takes {type(message).__name__}")

    with load(path, own=True, core_parts=CoreParts(make_origin=KnownProcess)) as engine:
        first, [link] = pid_of(engine), [child.link for child in children]
        if deaf == "engine":
            link.send = refuse
        else:
            link._files.shutdown(socket.SHUT_RD)  # what has large arrays cannot be sent
            wanted = parse(["go on " * 200], max_new_tokens=2, output_last_hidden_state="all")
            [lost] = read(*submit(engine, wanted), timeout_s=60)
            assert "died (status 0)" in str(lost.error)
        [answer] = read(*submit(engine, parse(["go on"], max_new_tokens=2, ignore_eos=True)), timeout_s=60)
        assert answer.finish_reason == "length"
        assert is_over(first) and len(children) == 2 and engine.fault is None


def test_a_process_that_the_system_refuses_is_started_later(path: Path) -> None:
    num_refused = 0

    class RefusedProcess(OwnProcess):
        def open(self) -> Any:
            nonlocal num_refused
            if engines and num_refused < MAX_DEATHS:
                num_refused += 1
                raise OSError(errno.EMFILE, "too many open files")
            return super().open()

    engines: list[AsyncEngine] = []
    with load(path, own=True, core_parts=CoreParts(make_origin=RefusedProcess)) as engine:
        engines.append(engine)
        os.kill(pid_of(engine), signal.SIGKILL)
        wait_until(lambda: engine.fault is not None and "cannot be started" in engine.fault.reason)
        assert ask(engine, parse(["go on"], max_new_tokens=2, ignore_eos=True))[0].finish_reason == "length"
        assert engine.fault is None and num_refused == MAX_DEATHS


def test_closing_ends_requests_and_the_process(path: Path, folder: Path) -> None:
    with load(path, own=True) as engine:
        pid = pid_of(engine)
        ids, arrived = submit(engine, parse(["go on"], max_new_tokens=1500, ignore_eos=True))
        arrived.get(timeout=120)
    [answer] = read(ids, arrived)
    assert isinstance(answer.error, RequestError) and answer.error.code is ErrorCode.CLOSED
    assert is_over(pid) and not list(folder.iterdir())
    abandoned = load(path, own=True)
    pid = pid_of(abandoned)
    del abandoned
    wait_until(lambda: is_over(pid))


SCRIPT = """
import sys
sys.path[:0] = {paths!r}
import os, signal, threading, time
from seesay import EngineConfig, GenerationConfig, pipeline
pipe = pipeline({model!r}, EngineConfig(device_type="cpu", engine_process=True))
config = GenerationConfig(max_new_tokens=1900, ignore_eos=True)
print(pipe._engine.core.pid, flush=True)
stream = pipe.stream_infer(["a"] * 8, gen_config=config)
next(stream)
print("answering", flush=True)
"""


@pytest.mark.parametrize(
    ("body", "send"),
    [
        ("list(stream)", signal.SIGKILL),
        ("list(stream)", signal.SIGINT),
        pytest.param("raise RuntimeError('a bug')", None, marks=pytest.mark.slow),
    ],
    ids=["kill -9", "Ctrl-C", "exception"],
)
def test_the_engine_ends_with_the_front(path: Path, folder: Path, body: str, send: int | None) -> None:
    """However that ends; the script has no `if __name__`, and comes on standard input."""
    root = Path(__file__).parents[2]
    lines = SCRIPT.format(paths=[str(root)], model=str(path)) + textwrap.dedent(body)
    with subprocess.Popen(
        [sys.executable, "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as script:
        try:
            assert script.stdin is not None and script.stdout is not None and script.stderr is not None
            script.stdin.write(lines)
            script.stdin.close()
            script.stdin = None
            pid = int(script.stdout.readline())
            assert script.stdout.readline() == "answering\n"
            if send is not None:
                os.killpg(script.pid, send)
            _, errors = script.communicate(timeout=60)
            wait_until(lambda: is_over(pid))
        finally:
            script.kill()
    if send == signal.SIGINT:
        assert errors.rstrip().endswith("KeyboardInterrupt"), errors
    assert not list(folder.iterdir())


# --- the watchdog -----------------------------------------------------------------------------------------------------


def test_a_tower_that_hangs_is_noticed(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(faulty_engine.FOLDER, str(tmp_path))
    (tmp_path / "hang").touch()
    with load(path, own=True, step_timeout_s=5.0, core_parts=faulty_engine.PARTS) as engine:
        requests = parse([("what is this?", make_picture(50, 50, 1)), "text"], max_new_tokens=2, ignore_eos=True)
        ids, arrived = submit(engine, requests[:1])
        wait_until(lambda: engine.fault is not None)
        assert engine.fault is not None and engine.fault.part == "encoder"
        [answer] = read(ids, arrived)
        assert "vision encoder hangs" in str(answer.error) and "send the request again" in str(answer.error)
        assert [one.finish_reason for one in ask(engine, requests)] == ["length"] * 2
        assert engine.fault is None


def test_a_device_that_is_lost_is_found_by_another_process(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that the old one launches comes back: it ends, with all of its requests, and another one is started."""
    monkeypatch.setenv(faulty_engine.FOLDER, str(tmp_path))
    with load(path, own=True, core_parts=faulty_engine.PARTS) as engine:
        before = ask(engine, parse(["go on"], max_new_tokens=4, ignore_eos=True))[0]
        first = pid_of(engine)
        ids, arrived = submit(engine, parse(["go on", "and on"], max_new_tokens=1500, ignore_eos=True))
        arrived.get(timeout=120)
        (tmp_path / "lost").touch()
        for answer in read(ids, arrived):
            assert isinstance(answer.error, RequestError) and answer.error.code is ErrorCode.INTERNAL
            assert "illegal memory access" in str(answer.error)
        (tmp_path / "lost").unlink()
        wait_until(lambda: is_over(first) and engine.stats().total_engine_restarts == 1 and engine.fault is None)
        assert_same(ask(engine, parse(["go on"], max_new_tokens=4, ignore_eos=True))[0], before)
        assert pid_of(engine) != first


@pytest.mark.parametrize("part", ["engine", "encoder"])
def test_a_thread_that_hangs_is_noticed_and_left_behind(path: Path, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from seesay.engine.core import loop

    monkeypatch.setattr(loop, "CLOSE_S", 0.3)
    never, before = threading.Event(), set(threading.enumerate())
    with load(path, own=False, step_timeout_s=4.0) as engine:
        assert isinstance(engine.core, loop.EngineLoop) and engine.core.embeddings.worker is not None
        owner, name = (
            (engine.core._runner, "launch") if part == "engine" else (engine.core.embeddings.worker, "_check_kind")
        )
        monkeypatch.setattr(owner, name, lambda *_: never.wait(100))
        requests = parse([("what is this?", make_picture(50, 50, 1)), "text"], max_new_tokens=500, ignore_eos=True)
        # Text goes on beside a tower that hangs, until that is noticed.
        for answer in ask(engine, requests if part == "engine" else requests[:1]):
            assert answer.finish_reason == "error" and "hangs" in str(answer.error)
        assert engine.fault is not None and engine.fault.part == part
        with TestClient(create_app(engine, ServerSettings())) as http:
            health = http.get("/health")
            assert health.status_code == 503 and "hangs" in health.text
            metrics = http.get("/metrics").text
            assert f'seesay_part_up{{part="{part}"}} 0.0' in metrics and metrics.count("seesay_part_up{") == 2
        late = ask(engine, requests[1:])[0]
        assert late.finish_reason == "error" and "hangs" in str(late.error)
    left = set(threading.enumerate()) - before
    assert f"seesay-{part}" in {thread.name for thread in left}, "closing waits for nothing that hangs"
    never.set()
    for thread in left:
        thread.join(60)


def test_arrays_that_cross_are_writable_and_nobody_elses(engine: AsyncEngine) -> None:
    config = GenerationConfig(max_new_tokens=4, ignore_eos=True, output_logits="all")
    [first], [second] = ask(engine, parse(["a b c"], config)), ask(engine, parse(["a b c"], config))
    first.logits.zero_()
    assert second.logits.abs().max() > 0 and np.isfinite(second.logits.numpy()).all()


def test_a_process_imports_no_compiler_and_its_collections_of_garbage_do_not_visit_the_model(
    tiny_checkpoint: Callable[[str], Path],
) -> None:
    """torch's compiler takes 2.5 s to import. A collection that visits all modules and the model would stop the steps
    of all answers for a tenth of a second."""
    script = """
        import gc, os, sys
        from seesay.engine.process import child, kinds
        gc.disable()
        for folder in sys.argv[1:]:
            core = child._load(kinds.Start(folder, {"device_type": "cpu"}, {}, 20, 1.0))
            assert core.facts.takes_media
        print(gc.get_freeze_count(), len(gc.get_objects()), gc.isenabled(), "torch._dynamo" in sys.modules, flush=True)
        os._exit(0)
    """
    towers = ("qwen2_5_vl", "qwen3_vl")  # without and with a table of positions
    paths = [str(tiny_checkpoint(name)) for name in towers]
    for path in paths:
        open_model(Path(path), EngineConfig())  # as the frontend does before: the process finds what was kept of it
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *paths], capture_output=True, text=True, timeout=120, check=True
    )
    num_frozen, num_visited, collects, imports_compiler = done.stdout.split()
    assert int(num_frozen) > 10 * int(num_visited), "all modules and the model"
    assert (collects, imports_compiler) == ("True", "False")

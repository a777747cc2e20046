"""A vision encoder in a process of its own: what it is told, what it raises, and when it is started again. The process
is scripted; tests/engine/test_encoder_process.py has real ones."""

from __future__ import annotations

import gc
import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scripted_process import QUIET, ScriptedChild

from seesay.config import EngineConfig
from seesay.encoders.encoder import EncoderLostError
from seesay.engine.process import kinds
from seesay.engine.process.failures import describe_failure
from seesay.engine.process.tower import remote_encoder, tower_messages
from seesay.engine.process.tower.remote_encoder import RemoteEncoder, TowerProcess, open_remote_encoder
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.system.liveness import STOPPED_LIMIT_S

START = tower_messages.Start("folder", {}, "cpu", "float32", 20)
LOADED = tower_messages.Loaded()
EMBEDDINGS = [torch.arange(6, dtype=torch.bfloat16).reshape(2, 3), torch.zeros(1, 3, dtype=torch.bfloat16)]
ANSWER = tower_messages.Encoded.of(EMBEDDINGS)
FEATURES: list[dict[str, Any]] = [{"pixels": np.arange(3)}, {"size": 3}]


class Parts:
    """A tower whose processes are `children`, one after the other. It takes 8 s at most, by `now_s`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.children: list[ScriptedChild] = []
        self.started: list[Any] = []
        self.ended: list[float] = []
        self.is_stopped = False
        monkeypatch.setattr(remote_encoder, "ChildProcess", self._start)
        monkeypatch.setattr(remote_encoder, "is_stopped", lambda pid: pid == 77 and self.is_stopped)
        self.tower = TowerProcess(START, limit_s=8.0, clock=lambda: self.now_s)

    def _start(self, module: str, *, receives: Any) -> Any:
        self.started.append((module, receives))
        child = self.children.pop(0)
        child.on_wait = self.pass_time
        child.end = self.ended.append  # type: ignore[method-assign,assignment]
        return child

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    def expect(self, *script: Any, ends: str | None = None) -> ScriptedChild:
        """The next process."""
        self.children.append(child := ScriptedChild(kinds.Hello(), *script, ends=ends, pid=77))
        return child


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    return Parts(monkeypatch)


def check(found: list[torch.Tensor]) -> None:
    for own, expected in zip(found, EMBEDDINGS, strict=True):
        assert own.dtype == expected.dtype and torch.equal(own, expected)


def test_a_process_is_told_what_to_load_and_waited_for(parts: Parts, caplog: pytest.LogCaptureFixture) -> None:
    record = kinds.LogRecord("seesay.part", logging.WARNING, "100 % of %s")
    child = parts.expect(QUIET, record, QUIET, LOADED, ANSWER)
    parts.tower.start()
    assert parts.started == [("seesay.engine.process.tower.child", tower_messages.FromTower)]
    assert child.sent == [START] and list(child.script) == [ANSWER] and parts.ended == []
    assert [(each.levelno, each.getMessage()) for each in caplog.records] == [
        (logging.WARNING, "vision encoder: 100 % of %s")
    ]
    assert {timeout_s for timeout_s, _ in child.waits} == {0.5}


def test_items_are_encoded_by_the_process(parts: Parts) -> None:
    child = parts.expect(LOADED, ANSWER, ANSWER)
    check(parts.tower.encode(FEATURES))
    check(parts.tower.encode(FEATURES[1:]))
    assert len(parts.started) == 1
    assert [len(message.features) for message in child.sent[1:]] == [2, 1] and child.sent[2].features == [{"size": 3}]


def test_what_an_item_fails_for_is_raised_and_the_process_goes_on(parts: Parts) -> None:
    error = RequestError(ErrorCode.INVALID_REQUEST, "too large")
    failed = tower_messages.Encoded([], "", failure=kinds.Failure.of(error))
    raised = tower_messages.Encoded([], "", raised=describe_failure(ValueError("odd")))
    parts.expect(LOADED, failed, raised, ANSWER)
    with pytest.raises(RequestError, match="too large"):
        parts.tower.encode(FEATURES)
    with pytest.raises(ValueError, match="odd"):
        parts.tower.encode(FEATURES)
    check(parts.tower.encode(FEATURES))
    assert len(parts.started) == 1 and parts.ended == []


@pytest.mark.parametrize(("error", "notes"), [(CheckpointError("no weights"), 0), (ValueError("odd"), 2)])
def test_what_loading_raises_is_raised(parts: Parts, error: Exception, notes: int) -> None:
    """One that was not raised on purpose says where."""
    parts.expect(describe_failure(error), LOADED)
    with pytest.raises(type(error), match=str(error)) as raised:
        parts.tower.start()
    found = getattr(raised.value, "__notes__", [])
    assert len(found) == notes and (not notes or found[-1] == "in the process of the vision encoder")
    assert parts.ended == [0.0]
    parts.expect(LOADED, ANSWER)
    check(parts.tower.encode(FEATURES))


def test_a_message_that_is_not_expected_ends_the_start(parts: Parts) -> None:
    parts.expect(ANSWER)
    with pytest.raises(TypeError, match="Encoded is not expected now"):
        parts.tower.start()
    assert parts.ended == [0.0]


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_process_that_died_is_replaced(parts: Parts, caplog: pytest.LogCaptureFixture, is_broken: bool) -> None:
    child = parts.expect(LOADED, ends="signal 9")
    parts.tower.start()
    child.is_broken = is_broken
    with pytest.raises(EncoderLostError, match=r"died \(signal 9\)"):
        parts.tower.encode(FEATURES)
    assert parts.ended == [0.0] and "died (signal 9): it is started again" in caplog.text
    assert parts.now_s == 100, "it is not waited for"
    parts.expect(LOADED, ANSWER)
    check(parts.tower.encode(FEATURES))
    assert len(parts.started) == 2


def test_the_last_answer_of_a_process_counts(parts: Parts) -> None:
    child = parts.expect(LOADED, ANSWER, ends="status 1")
    parts.tower.start()
    child.has_ended = True
    check(parts.tower.encode(FEATURES))


def test_a_call_that_takes_too_long_hangs(parts: Parts) -> None:
    child = parts.expect(LOADED)
    parts.tower.start()
    with pytest.raises(TimeoutError, match="hangs: a call has taken 8 s"):
        parts.tower.encode(FEATURES)
    assert parts.now_s == 108 and parts.ended == [0.0] and isinstance(child.sent[-1], tower_messages.Stop)


def test_a_load_may_take_longer(parts: Parts) -> None:
    parts.expect(*[QUIET] * 100, LOADED)
    parts.tower.start()
    assert parts.now_s == 150
    parts.expect()
    with pytest.raises(TimeoutError, match="a call has taken 3600 s"):
        parts.tower.start()


def test_a_process_that_a_signal_stopped_is_replaced(parts: Parts) -> None:
    """Once it has been so for a while. A second before that was seen counts, too."""

    def stop() -> None:
        parts.is_stopped = True

    parts.expect(LOADED, QUIET, QUIET, stop)
    with pytest.raises(EncoderLostError, match="stopped by a signal"):
        parts.tower.encode(FEATURES)
    assert parts.now_s == 101 - 1 + STOPPED_LIMIT_S + 0.5 and parts.ended == [0.0]


def test_the_end_waits_for_the_process_and_comes_once(parts: Parts) -> None:
    parts.tower.end()
    child = parts.expect(LOADED)
    parts.tower.start()
    parts.tower.end(5.0)
    parts.tower.end(5.0)
    assert parts.ended == [5.0] and child.sent[1:] == [tower_messages.Stop()]
    other = parts.expect(LOADED)
    parts.tower.start()
    other.is_broken = True
    parts.tower.end()
    assert parts.ended == [5.0, 0.0]


class Process:
    """In place of a `TowerProcess`: notes in which thread it is used."""

    def __init__(self, start: Any = None, *, limit_s: float = 0.0) -> None:
        self.orders = start, limit_s
        self.threads: list[threading.Thread] = []
        self.ended: list[float] = []

    def start(self) -> None:
        self.threads.append(threading.current_thread())

    def encode(self, features: Any) -> Any:
        self.threads.append(threading.current_thread())
        return [features]

    def end(self, timeout_s: float) -> None:
        self.ended.append(timeout_s)
        self.threads.append(threading.current_thread())


def test_one_thread_has_the_process_and_ends_it_with_the_encoder() -> None:
    process: Any = Process()
    encoder = RemoteEncoder(process)
    assert encoder.device == torch.device("cpu") and encoder.encode(FEATURES) == [FEATURES]
    encoder.disable_graphs()
    del encoder
    gc.collect()
    assert process.ended == [5.0]
    assert len(set(process.threads)) == 1 and len(process.threads) == 3
    assert threading.current_thread() not in process.threads


@pytest.mark.parametrize(("step_timeout_s", "limit_s"), [(10.0, 8.0), (None, 96.0)])
def test_a_tower_is_loaded_with_the_configuration_of_its_core(
    monkeypatch: pytest.MonkeyPatch, step_timeout_s: float | None, limit_s: float
) -> None:
    monkeypatch.setattr(remote_encoder, "TowerProcess", Process)
    model: Any = SimpleNamespace(checkpoint=SimpleNamespace(path=Path("folder")))
    config = EngineConfig(step_timeout_s=step_timeout_s, download_dir="downloads", revision="main")
    encoder: Any = open_remote_encoder(model, config, device=torch.device("cuda:1"), dtype=torch.bfloat16)
    start, limit = encoder._process.orders
    assert limit == pytest.approx(limit_s)
    assert (start.folder, start.device, start.dtype) == (str(Path("folder").absolute()), "cuda:1", "bfloat16")
    assert start.engine["download_dir"] is None and start.engine["revision"] is None
    assert start.log_level == logging.getLogger("seesay").getEffectiveLevel()

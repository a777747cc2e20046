"""A core in another process, as its frontend sees it: what each call sends, what is refused, and how it ends. The
process is scripted; tests/engine/test_process.py has whole ones."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scripted_process import FACTS, NO_NEWS, ScriptedChild, ScriptedOrigin
from waiting import wait_until

from seesay.engine.commands import ModelStatus, ResetCaches, Sleep
from seesay.engine.process import kinds
from seesay.engine.process.failures import describe_failure
from seesay.engine.process.launch import END_S
from seesay.engine.process.origin import JoinedProcess, OwnProcess
from seesay.engine.process.remote.keeper import CLOSE_S, POLL_S
from seesay.engine.process.remote_core import ProcessCore
from seesay.engine.token_messages import TokenOutput, TokenRequest
from seesay.engine.watchdog import ENGINE, Fault
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.llm.plans.sampling_params import NamedProcessor, SamplingParams
from seesay.values import EngineStats, MediaItem, Modality, MultimodalInput

pytestmark = pytest.mark.timeout(60)
STATUS = ModelStatus(epoch=3)
HASH = bytes(32)


class IdleChild(ScriptedChild):
    """When its script is over, it waits for what wakes its keeper up, and ends when it is told to."""

    def wait(self, timeout_s: float, *others: int) -> bool:
        if not self.script and others:
            select.select(others, [], [], timeout_s)
            return False
        return super().wait(timeout_s, *others)

    def find_end(self) -> str | None:
        return "status 0" if any(isinstance(each, kinds.Stop) for each in self.sent) else None

    def told(self) -> list[Any]:
        """What it was told after it was loaded."""
        return [message for message in self.sent if not isinstance(message, tuple)]


class Listener:
    def __init__(self) -> None:
        self.outputs: list[TokenOutput] = []

    def on_outputs(self, outputs: Any) -> None:
        self.outputs.extend(outputs)

    def on_encoding(self, item_hash: bytes) -> None:
        """Nobody asks."""

    def on_features_wanted(self, request_id: int, item_index: int) -> None:
        """The process does not ask."""


class Parts:
    """A core whose process is loaded."""

    def __init__(self, *, is_owner: bool = True) -> None:
        self.child = IdleChild(kinds.Hello(), kinds.Started(FACTS, STATUS), pid=77)
        self.origin = ScriptedOrigin([self.child], is_owner=is_owner)
        self.core: Any = ProcessCore(self.origin)
        assert self.core.wait_until_loaded() is self.core
        self.listener: Any = Listener()
        self.core.start(self.listener)


@pytest.fixture
def parts() -> Iterator[Parts]:
    parts = Parts()
    yield parts
    parts.core.close()


def make_request(request_id: int, *processors: Any) -> TokenRequest:
    item = MediaItem(
        modality=Modality.IMAGE, span=(0, 2), slots=np.arange(2), hash=HASH, features={"size": 3}, num_units=4
    )
    prompt = MultimodalInput(token_ids=np.arange(3), positions=np.arange(3), next_position=3, items=(item,))
    return TokenRequest(request_id=request_id, prompt=prompt, params=SamplingParams(logits_processors=processors))


@pytest.mark.parametrize(("level", "sent"), [(logging.DEBUG, logging.DEBUG), (logging.ERROR, logging.INFO)])
def test_a_process_gets_what_it_is_to_load(level: int, sent: int, caplog: pytest.LogCaptureFixture) -> None:
    made: list[Any] = []
    listener: Any = object()

    def make_origin(*arguments: Any) -> Any:
        made.append(arguments)
        return ScriptedOrigin([ValueError("no process")])

    with caplog.at_level(level, "seesay"):
        core = ProcessCore.load(
            Path("folder"),
            {"tp": 2},
            {"own_process": True},
            step_timeout_s=2.0,
            listener=listener,
            make_origin=make_origin,
        )
    with pytest.raises(ValueError, match="no process"):
        core.wait_until_loaded()
    assert made == [(kinds.Start("folder", {"tp": 2}, {"own_process": True}, sent, 0.5), listener)]
    assert core._taker._step_timeout_s == core._keeper._step_timeout_s == 2.0


def test_by_default_it_is_a_process_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnProcess, "open", lambda self: ScriptedOrigin([ValueError("no process")]).open())
    core = ProcessCore.load(Path("folder"), {}, {})
    with pytest.raises(ValueError, match="no process"):
        core.wait_until_loaded()
    assert isinstance(core._origin, OwnProcess) and core._origin._start.beat_s == 1.0
    assert core._origin._listener is None


def test_a_process_that_nobody_has_started_cannot_be_joined() -> None:
    core: Any = ProcessCore.join("seesay-nobody", read_status=lambda: STATUS, step_timeout_s=7.0)
    with pytest.raises(ConnectionRefusedError):
        core.wait_until_loaded()
    assert isinstance(core._origin, JoinedProcess) and not core._keeper.thread.is_alive()
    assert core.confirm_status() is STATUS and core._taker._step_timeout_s == core._keeper._step_timeout_s == 7.0
    assert core.is_given_up


def test_what_loading_raises_is_raised_and_the_core_is_closed() -> None:
    child = IdleChild(kinds.Hello(), describe_failure(CheckpointError("no weights")))
    core = ProcessCore(ScriptedOrigin([child]))
    with pytest.raises(CheckpointError, match="no weights"):
        core.wait_until_loaded()
    assert not core._keeper.thread.is_alive() and child.num_ended == 1 and core.pid is None


def test_what_is_known_of_the_process(parts: Parts) -> None:
    core = parts.core
    assert core.facts is FACTS and core.status is STATUS and core.confirm_status() is STATUS
    assert core.pid == 77 and not core.is_given_up and not core.fault
    core._state.silence = silence = Fault(ENGINE, "silent")
    assert core.fault is silence
    core._state.fault = fault = Fault(ENGINE, "it died")
    assert core.fault is fault
    core._state.note_deaf(parts.child)
    assert core.pid is None


def test_requests_are_sent_and_ended(parts: Parts) -> None:
    core = parts.core
    core.submit([make_request(1, NamedProcessor("a:b")), make_request(2)])
    core.finish(1, "stop")
    core.abort([2])
    core.end_group(4)
    submitted = [message.request.request_id for message in parts.child.told()[:2]]
    assert submitted == [1, 2]
    assert parts.child.told()[2:] == [kinds.Finish(1, "stop"), kinds.Abort((2,)), kinds.EndGroup(4)]
    wait_until(lambda: [each.request_id for each in parts.listener.outputs] == [2])


def test_media_are_expected_and_forgotten(parts: Parts) -> None:
    core = parts.core
    core.expect_media(iter([1, 2]))
    core.forget_media(iter([1]))
    core.expect_media([])
    core.forget_media([])
    core.give_features(1, 2, {"size": 3})
    assert parts.child.told() == [
        kinds.ExpectMedia((1, 2)),
        kinds.ForgetMedia((1,)),
        kinds.GiveFeatures(1, 2, {"size": 3}, None),
    ]


def test_an_embedding_is_there_once_it_was_asked_for(parts: Parts) -> None:
    assert not parts.core.is_encoded(HASH)
    parts.core.submit([make_request(1)])
    assert parts.core.is_encoded(HASH)


def test_functions_of_this_process_are_refused(parts: Parts) -> None:
    parts.core.submit([make_request(1, NamedProcessor("a:b"), lambda ids, logits: logits), make_request(2)])
    wait_until(lambda: bool(parts.listener.outputs))
    [output] = parts.listener.outputs
    assert output.request_id == 1 and output.finish_reason == "error"
    assert output.error.code is ErrorCode.INVALID_REQUEST and output.error.param == "logits_processors"
    assert [message.request.request_id for message in parts.child.told()] == [2]


def test_a_core_that_cannot_answer_refuses(parts: Parts) -> None:
    parts.core._state.failure = RuntimeError("given up")
    parts.core.submit([make_request(1)])
    wait_until(lambda: bool(parts.listener.outputs))
    [output] = parts.listener.outputs
    assert "given up" in str(output.error) and parts.child.told() == [] and parts.core.is_given_up


def test_a_core_that_is_closed_refuses(parts: Parts) -> None:
    parts.core.close()
    parts.core.submit([make_request(1)])
    [output] = parts.listener.outputs
    assert output.error.code is ErrorCode.CLOSED and str(output.error) == "the engine is closed"
    assert parts.child.told() == [kinds.Stop()] and not parts.core._keeper.thread.is_alive()


def test_commands_are_done_by_the_process(parts: Parts) -> None:
    def answer(message: Any) -> None:
        if isinstance(message, kinds.Do):
            parts.core._commands.take(kinds.Done(message.number, None, None, NO_NEWS))

    parts.child.on_send = answer
    parts.core.run_command(Sleep(level=2))
    parts.core.run_command(ResetCaches())
    assert [message.name for message in parts.child.told()] == ["Sleep", "ResetCaches"]


@pytest.mark.parametrize(("is_owner", "num_restarts"), [(True, 5), (False, 0)])
def test_restarts_are_counted_by_the_owner(is_owner: bool, num_restarts: int) -> None:
    parts = Parts(is_owner=is_owner)
    parts.core._taker.stats = EngineStats(total_step_tokens=7)
    parts.core._state.num_restarts = 5
    stats = parts.core.stats()
    assert (stats.total_step_tokens, stats.total_engine_restarts) == (7, num_restarts)
    parts.core.close()


def test_stopping_waits_for_nothing_and_closing_for_all(parts: Parts) -> None:
    core, joined = parts.core, list[float]()
    core.stop()
    core._keeper.thread.join(30)
    assert not core._keeper.thread.is_alive() and parts.child.told() == [kinds.Stop()]
    core._keeper = SimpleNamespace(is_closing=False, thread=SimpleNamespace(join=joined.append))
    core.close()
    assert joined == [CLOSE_S + END_S + POLL_S] and core._keeper.is_closing


def test_a_copy_of_the_process_closes_nothing(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has is the caller's."""
    monkeypatch.setattr(os, "getpid", lambda: -1)
    parts.core.close()
    monkeypatch.undo()
    assert not parts.core._keeper.is_closing and parts.core._process_id == os.getpid()


def test_its_own_thread_may_close_it(parts: Parts) -> None:
    """For example a listener that fails."""
    closing = threading.Event()

    def close(outputs: Any) -> None:
        parts.core.close()
        closing.set()

    parts.listener.on_outputs = close
    parts.core.submit([make_request(1)])
    parts.core.abort([1])
    assert closing.wait(30)
    parts.core._keeper.thread.join(30)
    assert not parts.core._keeper.thread.is_alive()


def test_features_that_cannot_be_made_are_an_error(parts: Parts) -> None:
    error = RequestError(ErrorCode.INVALID_REQUEST, "the picture cannot be read")
    parts.core.give_features(1, 2, error)
    assert parts.child.told() == [kinds.GiveFeatures(1, 2, {}, kinds.Failure.of(error))]

"""Messages of an engine process, and who gets what of each."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scripted_process import FACTS, NO_NEWS, ScriptedChild, ScriptedOrigin

from seesay.engine.commands import ModelStatus
from seesay.engine.process import kinds
from seesay.engine.process.failures import HungError, describe_failure
from seesay.engine.process.remote.message_taker import MessageTaker
from seesay.engine.process.remote.request_sender import RequestSender
from seesay.engine.process.remote.state import MAX_DEATHS, ProcessState
from seesay.engine.token_messages import TokenOutput, TokenRequest
from seesay.engine.watchdog import CPU_LIMIT_S, ENCODER, ENGINE, GPU_LIMIT_S
from seesay.errors import CheckpointError
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.values import EngineStats, MediaItem, Modality, MultimodalInput

STATUS = ModelStatus(epoch=3)


class Parts:
    """A taker whose process takes requests already, unless it is to be started. `told`: what the listener heard."""

    def __init__(self, step_timeout_s: float | None = None, device: str = "cuda:0") -> None:
        self.facts = replace(FACTS, device=device)
        self.origin = ScriptedOrigin()
        self.state: Any = ProcessState(self.origin)
        anything: Any = self
        self.sender = RequestSender(self.state, anything)
        self.requests = self.sender.requests
        self.requests.listener = anything
        self.told: list[Any] = []
        self.done: list[kinds.Done] = []
        self.taker = MessageTaker(self.state, self.origin, self.sender, anything, step_timeout_s=step_timeout_s)
        self.child = ScriptedChild()

    def wake(self) -> None:
        """The thread is this one."""

    def on_outputs(self, outputs: Any) -> None:
        self.told.append([each.request_id for each in outputs])

    def on_encoding(self, item_hash: bytes) -> None:
        self.told.append(item_hash)

    def on_features_wanted(self, request_id: int, item_index: int) -> None:
        self.told.append((request_id, item_index))

    def add(self, request_id: int, *, has_arrays: bool = True) -> None:
        item = MediaItem(
            modality=Modality.IMAGE,
            span=(0, 2),
            slots=np.arange(2),
            hash=bytes(32),
            features={"size": 3},
            num_units=4,
            has_arrays=has_arrays,
        )
        prompt = MultimodalInput(token_ids=np.arange(3), positions=np.arange(3), next_position=3, items=(item, item))
        self.requests.ledger.add(TokenRequest(request_id=request_id, prompt=prompt, params=SamplingParams()))

    def take(self, message: Any) -> Exception | None:
        child: Any = self.child
        return self.taker.take(child, message)

    def start(self) -> None:
        assert self.take(kinds.Started(self.facts, STATUS)) is None


@pytest.fixture
def parts() -> Parts:
    return Parts()


@pytest.fixture
def started(parts: Parts) -> Parts:
    parts.start()
    return parts


def make_news(*encoded: bytes, dropped: tuple[bytes, ...] = (), stats: EngineStats | None = None) -> kinds.News:
    return kinds.News(encoded, dropped, stats)


def test_a_process_that_says_hello_gets_its_orders(parts: Parts) -> None:
    parts.state.status = STATUS
    assert parts.take(kinds.Hello()) is None
    assert parts.child.sent == [("hello", STATUS)] and parts.state.child is None


def test_a_process_that_is_loaded_gets_the_requests_that_wait(parts: Parts) -> None:
    for number in (2, 1):
        parts.add(number)
    parts.start()
    assert parts.state.child is parts.child and parts.state.facts is parts.facts and parts.state.status is STATUS
    assert [message.request.request_id for message in parts.child.sent] == [2, 1]


def test_a_load_that_failed_ends_the_process(parts: Parts) -> None:
    error = parts.take(describe_failure(CheckpointError("no weights")))
    assert type(error) is CheckpointError and str(error) == "no weights"


def test_outputs_come_after_the_news_of_their_step(started: Parts) -> None:
    started.add(1)
    output = kinds.Output.of(TokenOutput(request_id=1, token_ids=(7,)), 1)
    assert started.take(kinds.Outputs((output,), make_news(b"a", b"b", dropped=(b"b",)))) is None
    assert started.told == [b"a", b"b", [1]]
    assert started.requests.ledger.embeddings.encoded == {b"a"}


def test_news_are_kept_where_nobody_listens(started: Parts) -> None:
    started.requests.listener = None
    stats = EngineStats(total_step_tokens=5)
    assert started.take(kinds.Outputs((), make_news(b"a", stats=stats))) is None
    assert started.requests.ledger.embeddings.encoded == {b"a"} and started.taker.stats is stats


def test_counts_stay_until_there_are_new_ones(started: Parts) -> None:
    assert started.taker.stats == EngineStats()
    stats = EngineStats(total_step_tokens=5)
    started.take(kinds.Beat({}, make_news(stats=stats)))
    started.take(kinds.Beat({}, NO_NEWS))
    assert started.taker.stats is stats


@pytest.mark.parametrize(("num_tokens", "is_given_up"), [(0, True), (1, False)])
def test_a_process_that_computes_is_started_again_when_it_dies(num_tokens: int, is_given_up: bool) -> None:
    parts = Parts()
    for _ in range(MAX_DEATHS - 1):
        parts.start()
        parts.state.note_end(RuntimeError("it died"))
    parts.start()
    parts.take(kinds.Beat({}, NO_NEWS))
    parts.take(kinds.Beat({}, make_news(stats=EngineStats(total_step_tokens=num_tokens))))
    parts.state.note_end(RuntimeError("it died"))
    assert (parts.state.failure is not None) is is_given_up


@pytest.mark.parametrize(
    ("step_timeout_s", "device", "limit_s"),
    [(None, "cuda:0", GPU_LIMIT_S), (None, "cpu", CPU_LIMIT_S), (7.0, "cuda:0", 7.0), (7.0, "cpu", 7.0)],
)
def test_a_part_that_takes_too_long_hangs(step_timeout_s: float | None, device: str, limit_s: float) -> None:
    parts = Parts(step_timeout_s, device)
    parts.start()
    assert parts.take(kinds.Beat({ENGINE: 0.0, ENCODER: limit_s}, make_news(b"a"))) is None
    error = parts.take(kinds.Beat({ENGINE: 0.0, ENCODER: limit_s + 1}, make_news(b"b")))
    assert isinstance(error, HungError) and error.fault.part == ENCODER
    assert parts.told == [b"a", b"b"]


def test_features_that_are_there_are_given_and_others_asked_for(started: Parts) -> None:
    started.add(1)
    started.add(2, has_arrays=False)
    assert started.take(kinds.FeaturesWanted(1, 1)) is None
    assert started.child.sent == [kinds.GiveFeatures(1, 1, {"size": 3}, None)] and started.told == []
    assert started.take(kinds.FeaturesWanted(2, 1)) is None
    assert started.told == [(2, 1)] and len(started.child.sent) == 1
    assert started.take(kinds.FeaturesWanted(9, 0)) is None, "it has ended meanwhile"
    started.requests.listener = None
    assert started.take(kinds.FeaturesWanted(2, 0)) is None
    assert started.told == [(2, 1)] and len(started.child.sent) == 1


def test_an_answer_to_a_command_comes_after_its_news(started: Parts) -> None:
    seen: list[Any] = []
    commands: Any = started
    commands.take = lambda done: seen.append((done, set(started.requests.ledger.embeddings.encoded)))
    taker = started.taker
    done = kinds.Done(4, None, None, make_news(b"a"))
    child: Any = started.child
    assert taker.take(child, done) is None
    assert seen == [(done, {b"a"})]


def test_a_status_replaces_the_one_before(started: Parts) -> None:
    assert started.take(kinds.StatusChanged(ModelStatus(epoch=4))) is None
    assert started.state.status == ModelStatus(epoch=4)


def test_records_are_logged_by_their_loggers_as_they_are(started: Parts, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "seesay.part"):
        assert started.take(kinds.LogRecord("seesay.part", logging.WARNING, "100 % of %s")) is None
    [record] = caplog.records
    assert (record.name, record.levelno, record.getMessage()) == ("seesay.part", logging.WARNING, "100 % of %s")

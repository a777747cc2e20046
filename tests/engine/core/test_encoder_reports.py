"""Reports of the encoder's worker, with stand-ins for the engine around them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from seesay.encoders.store import Lookup
from seesay.encoders.worker import EncodeTiming
from seesay.engine.core.encoder_reports import EncoderReports
from seesay.engine.core.inbox import Inbox
from seesay.engine.core.live_request import LiveRequest
from seesay.engine.core.live_requests import LiveRequests
from seesay.engine.core.request_ends import RequestEnds
from seesay.engine.token_messages import TokenRequest
from seesay.errors import ErrorCode, RequestError
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.running.launched_step import PositionOutputs, RowResult
from seesay.llm.scheduling.step_commit import SequenceUpdate
from seesay.values import MultimodalInput

PICTURE = b"picture"
ROW_ERROR = RequestError(ErrorCode.INTERNAL, "the embedding is missing")


class Engine:
    """Request 7 took an embedding that is still being computed; request 8 took none."""

    def __init__(self) -> None:
        self.lent: Any = SimpleNamespace(request_id=7, lent_items={0}, end=None)
        self.lent.find_lent = lambda item_hash: [0] * (item_hash == PICTURE and bool(self.lent.lent_items))
        self.other: Any = SimpleNamespace(request_id=8, lent_items=set(), end=None)
        self.live: dict[int, Any] = {7: self.lent, 8: self.other}
        self.finished: list[int] = []
        self.ended: list[tuple[Any, BaseException, int | None]] = []
        self.inbox = Inbox()
        self.noted: list[str] = []  # what the scheduler hears of items and blocks
        self.state, self.is_usable = Lookup.MISSING, True
        self.waiting: list[Any] = []  # updates of those that wait for the item
        scheduler: Any = SimpleNamespace(
            forget_blocks=lambda seq_id: self.noted.append(f"forget blocks of {seq_id}"),
            finish=lambda seq_id, *_: self.finished.append(seq_id),
            mark_failed=self._mark_failed,
            mark_ready=lambda item_hash: self.noted.append(f"{item_hash.decode()} is ready"),
        )
        self.scheduler = scheduler
        embeddings: Any = SimpleNamespace(
            store=SimpleNamespace(find=lambda _hash: self.state),
            find_users=lambda _hash: [self.live[7]] if 7 in self.live else [],
            note_encoded=self._note_encoded,
            note_launched=lambda _hash: self.is_usable,
        )
        self.reports = EncoderReports(self.inbox, scheduler, embeddings, self.live, self._end)

    def _note_encoded(self, _hash: bytes, _timing: EncodeTiming) -> bool:
        self.lent.lent_items.clear()
        return self.is_usable

    def _mark_failed(self, item_hash: bytes, _error: Exception) -> list[Any]:
        self.noted.append(f"{item_hash.decode()} failed")
        return self.waiting

    def _end(self, request: Any, error: BaseException, index: int | None) -> None:
        del self.live[request.request_id]
        self.ended.append((request, error, index))


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_a_lent_embedding_that_is_gone_ends_its_request_with_the_error_of_the_tower(engine: Engine) -> None:
    """The embedding goes before the report comes: the row of the request cannot be computed, but that is no reason."""
    assert not engine.reports.try_blame(engine.other, ROW_ERROR), "nothing was lent to it"
    assert engine.reports.try_blame(engine.lent, ROW_ERROR)
    assert engine.finished == [7] and not engine.ended, "it computes nothing any more, and nothing waits for the report"
    assert engine.reports.try_blame(engine.lent, ROW_ERROR)
    assert engine.finished == [7], "of a step that was in flight"
    failure = RequestError(ErrorCode.INTERNAL, "the tower failed")
    engine.reports.on_failed(PICTURE, failure)
    engine.inbox.drain(wait=False)
    assert engine.ended == [(engine.lent, failure, 0)] and list(engine.live) == [8]


def test_a_lent_embedding_that_is_good_leaves_the_request_its_own_error(engine: Engine) -> None:
    assert engine.reports.try_blame(engine.lent, ROW_ERROR)
    engine.reports.on_ready(PICTURE, EncodeTiming())
    engine.inbox.drain(wait=False)
    assert engine.ended == [(engine.lent, ROW_ERROR, None)]


@pytest.mark.parametrize("is_usable", [False, True])
def test_the_scheduler_hears_of_what_can_be_used(engine: Engine, is_usable: bool) -> None:
    """Of an item that is computed now, and of one that is there; it may be gone by then."""
    engine.is_usable = is_usable
    for report in (engine.reports.on_launched, lambda item_hash: engine.reports.on_ready(item_hash, EncodeTiming())):
        report(PICTURE)
        assert not engine.noted, "nothing is told in the worker's thread"
        engine.reports.take()
        assert engine.noted == ["picture is ready"] * is_usable
        engine.noted.clear()
    engine.inbox.drain(wait=False)
    assert not engine.noted and not engine.ended, "it was read before"


def test_a_request_with_another_embedding_that_is_lent_waits_for_that_too(engine: Engine) -> None:
    assert engine.reports.try_blame(engine.lent, ROW_ERROR)
    kept = engine.lent.lent_items
    engine.lent.lent_items = SimpleNamespace(clear=lambda: None)
    engine.reports.on_ready(PICTURE, EncodeTiming())
    engine.reports.take()
    assert not engine.ended
    engine.lent.lent_items = kept
    engine.reports.on_ready(b"other", EncodeTiming())
    engine.reports.take()
    assert engine.ended == [(engine.lent, ROW_ERROR, None)]


@pytest.mark.parametrize("state", Lookup)
def test_those_that_wait_fail_with_their_item_unless_it_came_again(engine: Engine, state: Lookup) -> None:
    engine.state = state
    items = [SimpleNamespace(hash=b"other"), SimpleNamespace(hash=PICTURE)]
    engine.waiting = [SimpleNamespace(seq=SimpleNamespace(seq_id=8, items=items))]
    engine.lent.lent_items.clear()
    engine.reports.on_failed(PICTURE, ROW_ERROR)
    engine.reports.take()
    assert engine.ended == ([(engine.other, ROW_ERROR, 1)] if state is Lookup.MISSING else [])
    expected = {Lookup.MISSING: ["picture failed"], Lookup.READY: ["picture is ready"], Lookup.IN_FLIGHT: []}
    assert engine.noted == expected[state]


def test_what_was_computed_with_a_bad_embedding_is_forgotten(engine: Engine) -> None:
    engine.reports.on_failed(PICTURE, ROW_ERROR)
    engine.reports.take()
    assert engine.noted == ["forget blocks of 7", "picture failed"] and engine.finished == [7]
    assert engine.ended == [(engine.lent, ROW_ERROR, 0)]


@pytest.mark.parametrize("is_pooled", [False, True])
def test_an_answer_ends_when_the_tower_has_told_of_what_it_took(engine: Engine, is_pooled: bool) -> None:
    """Its only step may be known before the report of the call that was computed before that."""
    dropped: list[int] = []
    requests = LiveRequests()
    ends = RequestEnds(engine.scheduler, requests, dropped.append)
    params = SamplingParams(pooling="last") if is_pooled else SamplingParams(output_logits="generation")
    prompt = MultimodalInput(token_ids=np.arange(2), positions=np.arange(2), next_position=2)
    request = LiveRequest.make(TokenRequest(request_id=7, prompt=prompt, params=params))
    request.lent_items = {0}
    requests.add(request)
    engine.lent = engine.live[7] = request
    ends.deliver(request, SequenceUpdate(seq=request.sequence, token_ids=(3,), finish_reason="stop"), ())
    assert not requests.take_outputs() and requests.by_id == {7: request}
    # What a row gives that was launched behind the last one:
    ends.fail(7, ROW_ERROR)
    requests.add_rows([RowResult(seq_id=7, start=2, logits=PositionOutputs(start=2, values=torch.zeros(1, 5)))])
    engine.reports.on_ready(PICTURE, EncodeTiming())
    engine.inbox.drain(wait=False)
    [output] = requests.take_outputs()
    assert output.finish_reason == "stop" and output.error is None and dropped == [7]
    assert output.report is not None and output.report.logits is None

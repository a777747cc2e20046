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
        scheduler: Any = SimpleNamespace(
            forget_blocks=lambda _id: None,
            finish=lambda seq_id, *_: self.finished.append(seq_id),
            mark_failed=lambda *_: (),
            mark_ready=lambda _hash: None,
        )
        self.scheduler = scheduler
        embeddings: Any = SimpleNamespace(
            store=SimpleNamespace(find=lambda _hash: Lookup.MISSING),
            find_users=lambda _hash: [self.live[7]] if 7 in self.live else [],
            note_encoded=self._note_encoded,
        )
        self.reports = EncoderReports(self.inbox, scheduler, embeddings, self.live, self._end)

    def _note_encoded(self, _hash: bytes, _timing: EncodeTiming) -> bool:
        self.lent.lent_items.clear()
        return True

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

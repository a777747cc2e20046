"""Reports of the encoder's worker, with stand-ins for the engine around them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from seesay.encoders.store import Lookup
from seesay.encoders.worker import EncodeTiming
from seesay.engine.core.encoder_reports import EncoderReports
from seesay.engine.core.inbox import Inbox
from seesay.errors import ErrorCode, RequestError

PICTURE = b"picture"
ROW_ERROR = RequestError(ErrorCode.INTERNAL, "the embedding is missing")


class Engine:
    """Request 7 took an embedding that is still being computed; request 8 took none."""

    def __init__(self) -> None:
        self.lent: Any = SimpleNamespace(request_id=7, lent_items={0}, failure=None)
        self.lent.find_lent = lambda item_hash: [0] * (item_hash == PICTURE and bool(self.lent.lent_items))
        self.other: Any = SimpleNamespace(request_id=8, lent_items=set(), failure=None)
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

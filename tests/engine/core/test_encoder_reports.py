"""Reports of the encoder's worker, with stand-ins for the engine around them."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

from seesay.encoders.store import Lookup
from seesay.engine.core.encoder_reports import EncoderReports
from seesay.engine.core.inbox import Inbox
from seesay.errors import ErrorCode, RequestError


def test_a_lent_embedding_that_is_gone_ends_its_request_with_the_error_of_the_tower() -> None:
    """The embedding goes before the report comes: the row of the request cannot be computed, but that is no reason."""
    ended: list[tuple[Any, Exception | None, int]] = []
    request = SimpleNamespace(request_id=7, lent_items={0}, find_lent=lambda item_hash: [0] * (item_hash == b"picture"))
    live: Any = {7: request, 8: SimpleNamespace(request_id=8, lent_items=set(), find_lent=lambda _hash: [])}

    def end(request: Any, error: Exception | None, index: int) -> None:
        del live[request.request_id]
        ended.append((request, error, index))

    scheduler: Any = SimpleNamespace(forget_blocks=lambda _id: None, finish=lambda *_: None, mark_failed=lambda *_: ())
    embeddings: Any = SimpleNamespace(
        store=SimpleNamespace(find=lambda _hash: Lookup.MISSING), find_users=lambda _hash: [live[7]]
    )
    reports = EncoderReports(Inbox(), scheduler, embeddings, live, end)
    reports.take_failure(8)  # nothing was lent to it
    failure = RequestError(ErrorCode.INTERNAL, "the tower failed")

    def report() -> None:
        time.sleep(0.01)
        reports.on_failed(b"picture", failure)

    thread = threading.Thread(target=report)
    thread.start()
    reports.take_failure(7)
    thread.join()
    assert ended == [(request, failure, 0)] and list(live) == [8]

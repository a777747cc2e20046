"""The reports of the encoder's worker: their way to the engine loop's thread, and what follows from them there.

A report is read some time after it was sent. By then the requests that needed the item may have ended, its embedding
may be evicted, and other requests may wait for it to be encoded again. So a report only says that something happened,
and the store says what is true now. A request pins an item before it asks for it, and only the loop's thread asks. So
an embedding that is in the store stays there, and while an item is being encoded another report will follow. An
embedding that is lent is in the store while it is being encoded: those who took it know, and the others wait for that
report.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from functools import partial

from seesay.encoders.store import Lookup
from seesay.encoders.worker import EncodeTiming
from seesay.engine.core.embedding_supply import EmbeddingSupply
from seesay.engine.core.inbox import Inbox
from seesay.engine.core.live_request import LiveRequest
from seesay.engine.failures import explain
from seesay.errors import RequestError
from seesay.llm.scheduling.scheduler import Scheduler


class EncoderReports:
    """`on_launched`, `on_ready` and `on_failed` are the worker's to call; `take` and what follows, the loop's.

    Reports are read with the inbox, or earlier, by `take`.
    """

    def __init__(
        self,
        inbox: Inbox,
        scheduler: Scheduler,
        embeddings: EmbeddingSupply,
        live: Mapping[int, LiveRequest],
        fail: Callable[[LiveRequest, BaseException, int | None], None],
    ) -> None:
        """`live`: the requests that are not over. fail(request, error, index): end one that the scheduler no longer
        has; `index` is that of the media item that could not be encoded."""
        self._inbox = inbox
        self._scheduler = scheduler
        self._embeddings = embeddings
        self._live = live
        self._fail = fail
        self._sent: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    # --- called by the worker -------------------------------------------------------------------------------------

    def on_launched(self, item_hash: bytes) -> None:
        """An item is being computed; its embedding may be lent."""
        self._send(partial(self._take_launched, item_hash))

    def on_ready(self, item_hash: bytes, timing: EncodeTiming) -> None:
        """An embedding is there."""
        self._send(partial(self._take_ready, item_hash, timing))

    def on_failed(self, item_hash: bytes, error: RequestError) -> None:
        """An item could not be encoded."""
        self._send(partial(self._take_failed, item_hash, error))

    def _send(self, report: Callable[[], None]) -> None:
        self._sent.put(report)
        self._inbox.put(self.take)

    # --- called by the loop ---------------------------------------------------------------------------------------

    def take(self) -> None:
        """Read the reports that are there."""
        while not self._sent.empty():
            self._sent.get()()

    def try_blame(self, request: LiveRequest, error: BaseException) -> bool:
        """Let the tower end a request whose row cannot be computed because of `error`, if it may be to blame: if the
        request took embeddings that are not known to be good. The request computes nothing any more, and ends with the
        next report of them. Returns whether one will follow."""
        if not request.lent_items:
            return False
        if request.end is None:
            request.end = partial(self._fail, request, error, None)
            self._scheduler.forget_blocks(request.request_id)
            self._scheduler.finish(request.request_id, "error", explain(error))
        return True

    def _take_launched(self, item_hash: bytes) -> None:
        if self._embeddings.note_launched(item_hash):
            self._scheduler.mark_ready(item_hash)

    def _take_ready(self, item_hash: bytes, timing: EncodeTiming) -> None:
        users = self._embeddings.find_users(item_hash)
        if self._embeddings.note_encoded(item_hash, timing):
            self._scheduler.mark_ready(item_hash)
        for request in users:
            if request.end is not None and not request.lent_items:
                request.end()

    def _take_failed(self, item_hash: bytes, error: Exception) -> None:
        failure = explain(error)
        for request in self._embeddings.find_users(item_hash):
            if lent := request.find_lent(item_hash):
                self._scheduler.forget_blocks(request.request_id)  # a step may have computed with it
                self._scheduler.finish(request.request_id, "error", failure)
                self._fail(request, failure, lent[0])
        found = self._embeddings.store.find(item_hash)
        if found is Lookup.READY:
            self._scheduler.mark_ready(item_hash)
        if found is not Lookup.MISSING:
            return
        for update in self._scheduler.mark_failed(item_hash, failure):
            failed_item = [item.hash for item in update.seq.items].index(item_hash)
            self._fail(self._live[update.seq.seq_id], failure, failed_item)

"""Receives the core's outputs, turns tokens into text, and passes the text to the receivers of the requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from seesay.engine.engine_core import RequestTaker
from seesay.engine.failures import explain
from seesay.engine.front.live_answer import LiveAnswer
from seesay.engine.front.media_room import MediaRoom
from seesay.engine.token_messages import Features, TokenOutput, TokenRequest
from seesay.errors import ErrorCode, RequestError
from seesay.system.thread_pool import ThreadPool
from seesay.values import OutputDelta

logger = logging.getLogger("seesay")

_FEATURE_THREADS = 2
"""Threads that decode media again whose embedding is gone: seldom needed."""


class Delivery:
    """A `CoreListener`. References the answers that `core` computes, but not the engine that requests them, so that
    the core's thread keeps no engine alive."""

    def __init__(self, core: RequestTaker, room: MediaRoom | None = None) -> None:
        """room: the budget for arrays of requests; freed once their items are being encoded, or they end."""
        self._core = core
        self._room = room or MediaRoom()
        self._live: dict[int, LiveAnswer] = {}
        self._threads = ThreadPool(_FEATURE_THREADS, name="seesay-features")

    def submit(self, requests: Sequence[tuple[TokenRequest, LiveAnswer]]) -> None:
        """Let the core compute requests, and hand out what comes as each answer says."""
        self._live.update((request.request_id, answer) for request, answer in requests)
        self._core.submit([request for request, _ in requests])

    def has(self, request_id: int) -> bool:
        """Whether the core computes a request, or will."""
        return request_id in self._live

    def close(self) -> None:
        """End the threads."""
        self._threads.close()

    # --- called by the core -------------------------------------------------------------------------------------------

    def on_outputs(self, outputs: Sequence[TokenOutput]) -> None:
        """Make text of tokens, hand it out, and end requests at their stop words."""
        self._room.release(output.request_id for output in outputs if output.finish_reason is not None)
        for output in outputs:
            if (answer := self._live.get(output.request_id)) is not None:  # else its receiver failed
                self._take(answer, output)

    def on_features_wanted(self, request_id: int, item_index: int) -> None:
        """Decode a media item after all, in a thread."""
        answer = self._live.get(request_id)
        if answer is None:
            return
        try:
            self._threads.submit(self._give_features, request_id, item_index, answer.load_features[item_index])
        except RuntimeError as error:  # the engine is being closed, or no thread can be started
            refusal = RequestError(ErrorCode.CLOSED, f"the media cannot be decoded again now: {error}")
            self._core.give_features(request_id, item_index, refusal)

    def on_encoding(self, item_hash: bytes) -> None:
        """Let the next request with media be prepared."""
        self._room.note_encoding(item_hash)

    def _give_features(self, request_id: int, item_index: int, load: Callable[[], Features]) -> None:
        try:
            features: Features | RequestError = load()
        except BaseException as error:
            features = explain(error)
        self._core.give_features(request_id, item_index, features)

    def _take(self, answer: LiveAnswer, output: TokenOutput) -> None:
        had_stopped = answer.has_stopped
        try:
            delta = answer.take(output)
        except BaseException as error:  # whatever a tokenizer does with these ids
            delta = OutputDelta(request_id=output.request_id, finish_reason="error", error=explain(error))
        if delta is not None and delta.finish_reason is not None:
            if self._live.pop(output.request_id, None) is None:
                return  # another thread ended it meanwhile
            if output.finish_reason is None:
                self._core.abort([output.request_id])
        elif answer.has_stopped and not had_stopped:
            self._core.finish(output.request_id, "stop")
        if delta is not None:
            self._emit(answer, delta)

    def _emit(self, answer: LiveAnswer, delta: OutputDelta) -> None:
        try:
            answer.on_output(delta)
        except BaseException:
            logger.exception("the receiver of request %d failed; the request is aborted", answer.request_id)
            if delta.finish_reason is None:
                self._core.abort([answer.request_id])

"""Ends requests, wherever they are: computed, or held before they begin. Used by the loop's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from seesay.engine.core.live_request import LiveRequest
from seesay.engine.core.live_requests import LiveRequests
from seesay.engine.failures import explain
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.step_commit import SequenceUpdate
from seesay.values import FinishReason

NewTokens = tuple[LiveRequest, SequenceUpdate, Sequence[Mapping[int, float]]]
"""New tokens of a request, and their log-probabilities."""


class RequestEnds:
    """Each request gets one final output, when the scheduler no longer has it."""

    def __init__(self, scheduler: Scheduler, requests: LiveRequests, drop: Callable[[int], None]) -> None:
        """`drop` frees what else is kept of a request."""
        self._scheduler = scheduler
        self._requests = requests
        self._drop = drop

    def deliver(self, request: LiveRequest, update: SequenceUpdate, logprobs: Sequence[Mapping[int, float]]) -> None:
        """Take a sequence's new tokens, and hand them out unless they wait for the end. The end waits for the tower, if
        that has not told yet of an embedding that was lent."""
        reason, stop_token_id = update.finish_reason, update.stop_token_id
        if request.sequence.params.pooling is not None:
            # The token that ended the prompt's last row is dropped: the answer is the pooled state.
            reason, stop_token_id = "error" if update.error else "stop", None
        else:
            self._requests.add_tokens(request, update, logprobs)
        if reason is None:
            return
        end = partial(self.finish, request, reason, stop_token_id=stop_token_id, error=update.error)
        if request.lent_items:
            request.end = end
        else:
            end()

    def deliver_all(self, steps: Iterable[NewTokens]) -> None:
        """Do as `deliver` for each."""
        for request, update, logprobs in steps:
            self.deliver(request, update, logprobs)

    def finish(
        self,
        request: LiveRequest,
        reason: FinishReason,
        *,
        stop_token_id: int | None = None,
        error: Exception | None = None,
        failed_item: int | None = None,
    ) -> None:
        """Make the final output of a request that the scheduler no longer has."""
        request.end = None
        self._requests.end(request, reason, stop_token_id=stop_token_id, error=error, failed_item=failed_item)
        self._drop(request.request_id)

    def end(self, request_id: int, reason: FinishReason, error: Exception | None = None) -> None:
        """End a request from outside of a step; nothing happens when it has ended."""
        if (request := self._requests.take(request_id)) is not None:
            self._scheduler.finish(request_id, reason, error)
            self.finish(request, reason, error=error)

    def fail(self, request_id: int, error: BaseException) -> None:
        """End a request with an error, unless it has ended, or computes nothing any more."""
        request = self._requests.by_id.get(request_id)
        if request is None or request.end is None:
            self.end(request_id, "error", explain(error))

    def fail_item(self, request: LiveRequest, error: BaseException, failed_item: int | None) -> None:
        """End a live request whose picture or video cannot be encoded."""
        self.finish(request, "error", error=explain(error), failed_item=failed_item)

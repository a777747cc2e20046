"""The requests of an engine loop that are not over, and their outputs until they are sent. Used by its thread."""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from seesay.engine.core.live_request import LiveRequest
from seesay.engine.failures import explain
from seesay.engine.token_messages import TokenOutput, TokenReport
from seesay.errors import RequestError
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.scheduling.step_commit import SequenceUpdate
from seesay.values import FinishReason

if TYPE_CHECKING:
    from seesay.llm.running.launched_step import RowResult
    from seesay.llm.running.sampling_row import LogitsProcessor


class Awaited(enum.Enum):
    """What a request waits for before the scheduler takes it."""

    COMMANDS = enum.auto()
    ADAPTER = enum.auto()
    GRAMMAR = enum.auto()


class LiveRequests:
    """by_id: the live requests, which the scheduler has. held: those that wait before, by what they wait for, and their
    ids. processors: those of the live requests that have any, by id."""

    def __init__(self) -> None:
        self.by_id: dict[int, LiveRequest] = {}
        self.held: dict[Awaited, dict[int, LiveRequest]] = {awaited: {} for awaited in Awaited}
        self.processors: dict[int, tuple[LogitsProcessor, ...]] = {}
        self._outputs: list[TokenOutput] = []  # of a step or of the inbox

    def add(self, request: LiveRequest, awaited: Awaited | None = None) -> None:
        """Take a request, which is live from now on, or waits for something before."""
        if awaited is not None:
            self.held[awaited][request.request_id] = request
            return
        self.by_id[request.request_id] = request
        if request.processors:
            self.processors[request.request_id] = request.processors

    def iterate(self, *, but: Awaited | None = None) -> Iterator[LiveRequest]:
        """Yield all requests that have not ended, without those that wait for `but`."""
        held = (requests for awaited, requests in self.held.items() if awaited is not but)
        return chain.from_iterable(requests.values() for requests in (self.by_id, *held))

    def take_held(self, awaited: Awaited) -> list[LiveRequest]:
        """Return the requests that waited for `awaited`, which they do no more."""
        held, self.held[awaited] = self.held[awaited], {}
        return list(held.values())

    def take(self, request_id: int) -> LiveRequest | None:
        """Return a request that has not ended, which waits for nothing from now on."""
        request = self.by_id.get(request_id)
        for held in self.held.values():
            request = request or held.pop(request_id, None)
        return request

    def note_launch(self, plan: StepPlan) -> None:
        """Note when the first rows of sequences are launched: with the plan with which they begin."""
        now = time.perf_counter()
        for begun in plan.begun:
            request = self.by_id.get(begun.seq_id)  # none for one that was impossible
            if request is not None and request.computing_at is None:
                request.computing_at = now

    def add_rows(self, rows: Iterable[RowResult]) -> None:
        """Take what the rows of a step gave beside tokens. A sequence may have ended when the step before was
        committed."""
        for row in rows:
            request = self.by_id.get(row.seq_id)
            if request is not None and request.end is None:
                request.add_row(row)

    def add_tokens(self, request: LiveRequest, update: SequenceUpdate, logprobs: Sequence[Mapping[int, float]]) -> None:
        """Take new tokens of a request, and make an output of them unless they wait for the end."""
        request.add_tokens(update.token_ids, logprobs[: len(update.token_ids)])
        if update.finish_reason is None and not request.defers_tokens:
            self._outputs.append(request.take_output())

    def end(
        self,
        request: LiveRequest,
        reason: FinishReason,
        *,
        stop_token_id: int | None = None,
        error: Exception | None = None,
        failed_item: int | None = None,
    ) -> None:
        """Make the final output of a request, also of one that never was live."""
        self.by_id.pop(request.request_id, None)
        self.processors.pop(request.request_id, None)
        shown = None if error is None else explain(error)
        self._outputs.append(
            request.take_output(reason, stop_token_id=stop_token_id, error=shown, failed_item=failed_item)
        )

    def refuse(self, request_id: int, error: RequestError) -> None:
        """Make the final output of a request that could not even be made live."""
        self._outputs.append(
            TokenOutput(request_id=request_id, finish_reason="error", error=error, report=TokenReport())
        )

    def clear(self) -> None:
        """Know no request any more."""
        for requests in (self.by_id, *self.held.values()):
            requests.clear()
        self.processors.clear()
        self._outputs.clear()

    def take_outputs(self) -> list[TokenOutput]:
        """Return the outputs that were made since the last call."""
        outputs, self._outputs = self._outputs, []
        return outputs

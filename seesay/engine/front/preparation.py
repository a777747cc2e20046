"""Prepares requests in threads, and hands them to the core: each waits for its turn, and may be aborted before."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple, cast

from seesay.device.host_memory import MemoryReturn
from seesay.engine.commands import make_sleeping_error
from seesay.engine.engine_core import EngineCore
from seesay.engine.failures import explain
from seesay.engine.front.delivery import Delivery
from seesay.engine.front.live_answer import OutputSink
from seesay.engine.front.media_room import MediaRoom
from seesay.engine.front.preparer import PreparedRequest, RequestPreparer
from seesay.engine.front.request_facts import has_media, has_media_at_hand
from seesay.engine.front.shared_prompts import SharedPrompts, group_by_prompt
from seesay.errors import ErrorCode, RequestError
from seesay.system.cancellation import Cancellation
from seesay.system.fair_threads import FairThreads
from seesay.values import GenerationRequest, OutputDelta

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from seesay.config.grammar import Grammar

logger = logging.getLogger("seesay")

_TEXT_REQUESTS, _MEDIA_REQUESTS, _GRAMMAR_REQUESTS = 4, 32, 32
"""Requests without and with media that are prepared at the same time; decoding has threads of its own. Requests whose
grammars are tried."""
_GRAMMARS_PER_OWNER = 3
"""So many of them are tried at the same time, so that another owner's are, too."""


class _Waiting(NamedTuple):
    """A request that is being prepared: its receiver, and a handle that cancels it when its caller has left."""

    on_output: OutputSink
    cancellation: Cancellation


class _Group(NamedTuple):
    """Requests for one prompt, by their ids, and how they are answered."""

    requests: Mapping[int, GenerationRequest]
    on_output: OutputSink
    received_at: float
    prompts: SharedPrompts
    cancellation: Cancellation

    @property
    def first(self) -> GenerationRequest:
        return next(iter(self.requests.values()))

    @property
    def has_media(self) -> bool:
        return any(map(has_media, self.requests.values()))


class OpenRequests:
    """The requests that are not handed to the core yet, by id. Thread-safe. is_closed: whether none comes any more."""

    def __init__(self) -> None:
        self.waiting: dict[int, _Waiting] = {}
        self.is_closed = False
        self.lock = threading.Lock()

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Let the engine not be closed meanwhile. Raises `RequestError` where it is."""
        with self.lock:
            if self.is_closed:
                raise RequestError(ErrorCode.CLOSED, "the engine is closed")
            yield

    def check(self) -> None:
        """Raise `RequestError` where the engine is closed."""
        with self.opened():
            return

    def pop(self, request_id: int) -> _Waiting | None:
        """Return a request, which does not wait any more; None for one that does not."""
        with self.lock:
            return self.waiting.pop(request_id, None)

    def try_close(self) -> bool:
        """Let no further request come. Returns whether this is the first call."""
        with self.lock:
            was_closed, self.is_closed = self.is_closed, True
        return not was_closed


class Preparation:
    """Prepares requests, which are `open` until they are handed to the core."""

    def __init__(self, core: EngineCore, preparer: RequestPreparer, delivery: Delivery, room: MediaRoom) -> None:
        """room: the budget for arrays of requests."""
        self._core, self._preparer, self._delivery, self._room = core, preparer, delivery, room
        # Requests with media wait in threads of their own, so that those without never wait for a slow picture.
        media_threads = FairThreads(
            _MEDIA_REQUESTS, name="seesay-prepare-media", max_per_owner=_MEDIA_REQUESTS - _MEDIA_REQUESTS // 4
        )
        self._threads = {False: FairThreads(_TEXT_REQUESTS, name="seesay-prepare"), True: media_threads}
        # Those whose grammar is tried wait in others before, so that none waits for somebody's large schema.
        self._grammar_threads = FairThreads(
            _GRAMMAR_REQUESTS, name="seesay-try-grammar", max_per_owner=_GRAMMARS_PER_OWNER
        )
        self._memory_return = MemoryReturn()
        self.open = OpenRequests()

    def begin(
        self,
        ids: Sequence[int],
        requests: Sequence[GenerationRequest],
        on_output: OutputSink,
        received_at: float,
        prompts: SharedPrompts,
    ) -> None:
        """Prepare requests, which have these ids. Raises as `AsyncEngine.submit_batch`."""
        groups = [
            _Group(group, on_output, received_at, prompts, Cancellation(len(group)))
            for group in group_by_prompt(zip(ids, requests))
        ]
        try:
            with self.open.opened():
                for group in groups:
                    self.open.waiting.update(dict.fromkeys(group.requests, _Waiting(on_output, group.cancellation)))
            self._core.expect_media(
                [request_id for request_id, request in zip(ids, requests) if has_media_at_hand(request)]
            )
            for group in groups:
                self._start(group)
        except BaseException as error:  # no thread could be started, or Ctrl-C
            self._withdraw(ids)
            if isinstance(error, RuntimeError) and self.open.is_closed:  # meanwhile
                raise RequestError(ErrorCode.CLOSED, "the engine is closed") from error
            raise

    def abort(self, request_id: int) -> bool:
        """End a request that is being prepared, and tell its receiver. Returns whether there is one."""
        if (waiting := self.open.pop(request_id)) is None:
            return False
        waiting.cancellation.leave()  # what prepares it finds nobody who waits for it
        self._core.forget_media([request_id])
        _report(waiting.on_output, OutputDelta(request_id=request_id, finish_reason="abort"))
        return True

    def try_grammar(self, request: GenerationRequest, cancellation: Cancellation) -> Future[Grammar | None]:
        """See `AsyncEngine.try_grammar`."""
        answers = self._preparer.answers
        with self.open.opened():
            found = answers.join_trial(request, cancellation)
            return cast("Future[Grammar | None] | None", found) or self._grammar_threads.submit(
                request.owner, answers.try_grammar, request, cancellation
            )

    def tokenize(self, request: GenerationRequest) -> Future[npt.NDArray[np.int64]]:
        """See `AsyncEngine.tokenize`."""
        with self.open.opened():
            return self._threads[False].submit(request.owner, self._preparer.prompts.tokenize, request)

    def end_threads(self) -> None:
        """Wait for what is being prepared, and end the threads."""
        for threads in (self._grammar_threads, *self._threads.values()):
            threads.close()

    def _withdraw(self, ids: Sequence[int]) -> None:
        """Forget requests whose ids nobody got. Those that are being prepared end silently, others are aborted."""
        for request_id in ids:
            if (waiting := self.open.pop(request_id)) is not None:
                waiting.cancellation.leave()
        self._core.forget_media(ids)
        self._core.abort(ids)

    def _start(self, group: _Group) -> None:
        """Let a thread prepare requests. Raises `RuntimeError` when the system starts none."""
        first = group.first
        if all(map(self._preparer.answers.is_tried, group.requests.values())):
            self._threads[has_media(first)].submit(first.owner, self._prepare_and_submit, group)
        else:
            self._grammar_threads.submit(first.owner, self._try_grammars, group)

    # --- in a thread ------------------------------------------------------------------------------------------------

    def _try_grammars(self, group: _Group) -> None:
        """Try the grammars of requests, and then prepare them."""
        for request in group.requests.values():
            with contextlib.suppress(Exception):  # is raised when the request is prepared
                self._preparer.answers.try_grammar(request, group.cancellation)
        first = group.first
        try:
            self._threads[has_media(first)].submit(first.owner, self._prepare_and_submit, group)
        except RuntimeError:  # closed meanwhile
            self._prepare_and_submit(group)

    def _prepare_and_submit(self, group: _Group) -> None:
        """Prepare requests, and hand them to the core. One that cannot be prepared ends here."""
        with self.open.lock:
            left = {request_id: each for request_id, each in group.requests.items() if request_id in self.open.waiting}
        if not left:
            return  # all were aborted while they waited for a thread
        group = group._replace(requests=left)
        ended, aborted = self._hand_over(self._prepare(group))
        self._room.release((*aborted, *(delta.request_id for delta in ended)))
        self._core.forget_media([delta.request_id for delta in ended])
        for delta in ended:
            _report(group.on_output, delta)
        if group.has_media:
            self._memory_return.return_if_due()

    def _prepare(self, group: _Group) -> Mapping[int, PreparedRequest | RequestError]:
        """Prepare requests, and wait for room for their media."""
        try:
            status = self._core.confirm_status()
            if status.asleep:
                return dict.fromkeys(group.requests, make_sleeping_error(status))
            if group.has_media:
                self._room.wait()
            found = self._preparer.prepare(
                group.requests, group.on_output, group.received_at, group.prompts, group.cancellation
            )
            _hold_room(self._room, found)
        except Exception as failure:  # whatever the owner of the engine's process answers
            return dict.fromkeys(group.requests, explain(failure))
        return found

    def _hand_over(self, found: Mapping[int, PreparedRequest | RequestError]) -> tuple[list[OutputDelta], list[int]]:
        """Hand requests to the core. Returns the final deltas of those that end here, and the ids of those that were
        aborted meanwhile, or are not known."""
        ended: list[OutputDelta] = []
        aborted: list[int] = []
        ready: list[PreparedRequest] = []
        with self.open.lock:
            for request_id, prepared in found.items():
                if self.open.waiting.pop(request_id, None) is None:
                    aborted.append(request_id)
                elif isinstance(prepared, RequestError):
                    ended.append(OutputDelta(request_id=request_id, finish_reason="error", error=prepared))
                elif self.open.is_closed:
                    error = RequestError(ErrorCode.CLOSED, "the engine was closed before the request was computed")
                    ended.append(OutputDelta(request_id=request_id, finish_reason="error", error=error))
                else:
                    ready.append(prepared)
            if ready:
                self._delivery.submit(ready)
        return ended, aborted


def _hold_room(room: MediaRoom, found: Mapping[int, PreparedRequest | RequestError]) -> None:
    """Wait for room for the media of requests for one prompt, which hold the same arrays."""
    ids = [request_id for request_id, prepared in found.items() if not isinstance(prepared, RequestError)]
    for request_id in ids[:1]:
        prepared = found[request_id]
        assert not isinstance(prepared, RequestError)
        items = prepared[0].prompt.items
        room.hold(request_id, {item.hash: item.num_array_bytes for item in items if item.has_arrays})


def _report(on_output: OutputSink, delta: OutputDelta) -> None:
    """Give the final delta of a request that the core never had to its receiver."""
    try:
        on_output(delta)
    except BaseException:
        logger.exception("the receiver of request %d failed", delta.request_id)

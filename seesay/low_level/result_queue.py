"""The results of one request: its tokens as they come, its status, its statistics."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from seesay.config.checks import require
from seesay.errors import StateError
from seesay.values import FinishReason, OutputDelta, join_deltas


class GenerateRequestStatus(StrEnum):
    """The state of a request.

    INIT: it waits, or its prompt is computed. CONTEXT_FINISHED: the prompt is computed, and the first token known.
    GENERATING: more tokens came. GENERATE_FINISHED: the answer is complete. GENERATE_INTERRUPTED: it ended early,
    because it was stopped, or with an error that `ResultQueue.get` raises.
    """

    INIT = "init"
    CONTEXT_FINISHED = "context_finished"
    GENERATING = "generating"
    GENERATE_FINISHED = "generate_finished"
    GENERATE_INTERRUPTED = "generate_interrupted"

    @property
    def is_over(self) -> bool:
        """Whether no more tokens will come."""
        return self in (self.GENERATE_FINISHED, self.GENERATE_INTERRUPTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedElements:
    """Tokens that came since the last call.

    ids_from_generate: the tokens; they do not include one that ended the answer. text: what they spell.
    log_probs_list: for each of them the most likely tokens, as (token id, log-probability); token_logprobs_list: its
        own log-probability. Both are empty unless they were asked for.
    finish_reason: set in the last elements of a request, which may have no token. These alone have:
    prefix_cache_len: prompt tokens that came from the prefix cache, on the device or in host memory.
    tensors_from_model_inference: 'logits' and 'last_hidden_state', where the request asked for them.
    """

    ids_from_generate: list[int]
    text: str = ""
    log_probs_list: list[list[tuple[int, float]]] = field(default_factory=list)
    token_logprobs_list: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    prefix_cache_len: int | None = None
    tensors_from_model_inference: dict[str, Any] = field(default_factory=dict)


class ResultQueue:
    """The results of one request, which may be read by any number of threads. Each token is handed out once.

    The queue remains readable when the request has ended or its model is stopped, until the request is released.
    """

    def __init__(self, name: str, *, num_logprobs: int = 0) -> None:
        """`name`: of the request, for errors. `num_logprobs`: how many alternatives were asked for."""
        self._name = name
        self._num_logprobs = num_logprobs
        self._changed = threading.Condition()
        self._deltas: deque[OutputDelta] = deque()
        self._status = GenerateRequestStatus.INIT
        self._num_tokens = 0
        self._statistics: dict[str, Any] = {}
        self._error: Exception | None = None
        self._abort: Callable[[], None] | None = None
        self._is_stopped = False
        self._is_released = False

    # --- for the reader ---------------------------------------------------------------------------------------------

    def get(self, timeout_s: float | None = None) -> GeneratedElements | None:
        """Return all tokens that came since the last call, and wait for one if there is none.

        Returns None when all were handed out and the request has ended, or when `timeout_s` has passed; the status
        tells which. Raises the error with which the request ended, once its tokens were handed out, and `StateError`
        for a request that was released.
        """
        if timeout_s is not None:
            is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool) and timeout_s >= 0
            require(is_number, "timeout_s", timeout_s, "must be at least 0, or None")
        with self._changed:
            self._changed.wait_for(lambda: self._deltas or self._is_over or self._is_released, timeout_s)
            self._check_released()
            if not self._deltas:
                if self._is_over and self._error is not None:
                    raise self._error
                return None
            delta = join_deltas(self._deltas)
            self._deltas.clear()
        return self._make_elements(delta)

    def get_nowait(self) -> GeneratedElements | None:
        """Return as `get` does what is there now; None when there is nothing."""
        return self.get(timeout_s=0)

    def generate_status(self) -> GenerateRequestStatus:
        """Return the state of the request, without waiting."""
        return self._status

    def generated_length(self) -> int:
        """Return the number of tokens that were generated so far, handed out or not."""
        return self._num_tokens

    def request_stat_info(self) -> dict[str, Any]:
        """Return statistics: the status and the number of tokens at any time, and when the request is over the counts
        of `Usage`, the seconds of `StageTimings`, `finish_reason` and `stop_reason`."""
        with self._changed:
            return {"status": str(self._status), "generated_tokens": self._num_tokens, **self._statistics}

    def __repr__(self) -> str:
        return f"ResultQueue({self._name}, {self._status}, generated_length={self._num_tokens})"

    # --- for the engine ---------------------------------------------------------------------------------------------

    def begin(self, abort: Callable[[], None]) -> None:
        """Tell how the running request is aborted. Its outputs may have come before."""
        with self._changed:
            if not self._is_over:
                self._abort = abort

    def put(self, delta: OutputDelta) -> None:
        """Take an output of the request. Called by threads of the engine."""
        with self._changed:
            num_new = len(delta.token_ids)
            if num_new:
                is_first = self._num_tokens == 0
                self._status = GenerateRequestStatus.CONTEXT_FINISHED if is_first else GenerateRequestStatus.GENERATING
            self._num_tokens += num_new
            if delta.finish_reason is not None:
                self._end(delta)
            if delta.error is not None:  # the tokens before it are handed out first
                delta = replace(delta, error=None, finish_reason=None)
            if not self._is_released and (num_new or delta.text or delta.finish_reason):
                self._deltas.append(delta)
            self._changed.notify_all()

    def stop(self) -> None:
        """Abort the request, unless it has ended, and let it be released."""
        self._check_released()
        self._is_stopped = True
        self.abort()

    def abort(self) -> None:
        """Abort the request, unless it has ended."""
        if (abort := self._abort) is not None:
            abort()

    def wait_until_over(self, timeout_s: float | None = None) -> GenerateRequestStatus:
        """Wait until the request has ended, or `timeout_s` has passed, and return its status."""
        self._check_released()
        with self._changed:
            self._changed.wait_for(lambda: self._is_over, timeout_s)
            return self._status

    def release(self) -> None:
        """Forget all results; those that still come are dropped. Raises `StateError` while the request is running."""
        with self._changed:
            self._check_released()
            if not (self._is_over or self._is_stopped):
                raise StateError(
                    f"{self._name} is still running: wait with sync_request or end it with stop_request before "
                    "release_request"
                )
            self._is_released = True
            self._deltas.clear()
            self._error = None
            self._changed.notify_all()

    @property
    def _is_over(self) -> bool:
        return self._status.is_over

    def _check_released(self) -> None:
        if self._is_released:
            raise StateError(f"{self._name} was released: read its queue before release_request")

    def _end(self, delta: OutputDelta) -> None:
        is_complete = delta.finish_reason in ("stop", "length")
        status = GenerateRequestStatus
        self._status = status.GENERATE_FINISHED if is_complete else status.GENERATE_INTERRUPTED
        self._error = delta.error
        self._abort = None  # it refers to the engine
        self._statistics = {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}
        for part in (delta.usage, delta.timings):
            if part is not None:
                self._statistics |= asdict(part)

    def _make_elements(self, delta: OutputDelta) -> GeneratedElements:
        likely: list[list[tuple[int, float]]] = []
        own: list[float] = []
        for token_id, entry in zip(delta.token_ids, delta.logprobs or ()):
            own.append(entry[token_id])
            likely.append(sorted(entry.items(), key=lambda pair: -pair[1])[: self._num_logprobs])
        tensors = {"logits": delta.logits, "last_hidden_state": delta.last_hidden_state}
        return GeneratedElements(
            ids_from_generate=list(delta.token_ids),
            text=delta.text,
            log_probs_list=likely,
            token_logprobs_list=own,
            finish_reason=delta.finish_reason,
            prefix_cache_len=None if delta.usage is None else delta.usage.cached_tokens,
            tensors_from_model_inference={name: value for name, value in tensors.items() if value is not None},
        )

"""The way of a core's outputs to its listener: one final output for each request, also when the core hangs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence

from seesay.engine.engine_core import CoreListener
from seesay.engine.token_messages import TokenOutput
from seesay.engine.watchdog import Fault
from seesay.errors import ErrorCode, RequestError

logger = logging.getLogger("seesay")


class Outbox:
    """Knows the requests without a final output. `send` is the core's thread's; the rest may be called from any."""

    def __init__(self) -> None:
        self.listener: CoreListener | None = None
        self.fault: Fault | None = None
        self._open: dict[int, bool] = {}  # request id → whether the core has begun with it
        self._lock = threading.Lock()

    def open(self, request_ids: Sequence[int]) -> bool:
        """Take requests to compute. Returns False if the core has failed: they end with an error."""
        with self._lock:
            fault = self.fault
            if fault is None:
                self._open.update(dict.fromkeys(request_ids, False))
                return True
        # The caller may hold a lock that the listener needs, and the core's own thread may hang.
        threading.Thread(target=self._end, args=(request_ids, fault), name="seesay-refuse", daemon=True).start()
        return False

    def take(self, request_id: int) -> None:
        """The core begins with this request."""
        with self._lock:
            if request_id in self._open:
                self._open[request_id] = True

    def fail_taken(self, error: RequestError) -> None:
        """End the requests with which the core has begun, with an error."""
        with self._lock:
            taken = [request_id for request_id, is_taken in self._open.items() if is_taken]
        self.fail(taken, error)

    def fail_all(self, error: RequestError) -> None:
        """End all requests with an error."""
        with self._lock:
            request_ids = list(self._open)
        self.fail(request_ids, error)

    def fail(self, request_ids: Iterable[int], error: RequestError) -> None:
        """End those of these requests that have no final output, with an error."""
        with self._lock:
            lost = self._close(request_ids)
        self._tell(lost, error)

    def send(self, outputs: Sequence[TokenOutput]) -> None:
        """Hand outputs to the listener, in one call. Raises what it raises."""
        with self._lock:  # those that were given up have their final output
            kept = [output for output in outputs if output.request_id in self._open]
            self._close(output.request_id for output in kept if output.finish_reason is not None)
        if kept and self.listener is not None:
            self.listener.on_outputs(kept)

    def give_up(self, fault: Fault) -> None:
        """End all requests with an error, from this thread, and take no more."""
        with self._lock:
            if self.fault is not None:
                return
            self.fault = fault
            lost = self._close(list(self._open))
        logger.critical("%s; its requests end, and no more are taken", fault.reason)
        self._end(lost, fault)

    def _close(self, request_ids: Iterable[int]) -> list[int]:
        """Let requests have their final output. Returns those that had none."""
        return sorted(request_id for request_id in request_ids if self._open.pop(request_id, None) is not None)

    def _end(self, request_ids: Iterable[int], fault: Fault) -> None:
        self._tell(request_ids, RequestError(ErrorCode.INTERNAL, f"{fault.reason}; the model must be loaded again"))

    def _tell(self, request_ids: Iterable[int], error: RequestError) -> None:
        outputs = [TokenOutput(request_id=number, finish_reason="error", error=error) for number in request_ids]
        if outputs and self.listener is not None:
            try:
                self.listener.on_outputs(outputs)
            except BaseException:
                logger.exception("the receiver of the engine's outputs failed")

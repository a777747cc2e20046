"""The requests of a core whose process may end: which are live, and what is handed out for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

from seesay.engine.engine_core import CoreListener
from seesay.engine.process import kinds
from seesay.engine.process.remote.ledger import Ledger
from seesay.engine.token_messages import TokenOutput
from seesay.errors import RequestError
from seesay.values import FinishReason

logger = logging.getLogger("seesay")


class Requests:
    """Live requests (`ledger`) and final outputs that no process made, until they are handed out to `listener`. `lock`
    guards both. Each request gets exactly one final output: the first."""

    def __init__(self, lock: threading.Condition, abort: Callable[[Iterable[int]], None]) -> None:
        """`abort` is called with the requests whose receiver has failed."""
        self.ledger = Ledger()
        self.listener: CoreListener | None = None
        self._lock = lock
        self._abort = abort
        self._ended: list[TokenOutput] = []

    def end(self, request_id: int, reason: FinishReason, error: RequestError | None = None) -> None:
        """End a request without the process, if it is live. Its final output is there for `hand_out`."""
        with self._lock:
            if self.ledger.remove(request_id):
                self._ended.append(TokenOutput(request_id=request_id, finish_reason=reason, error=error))

    def hand_out(self) -> None:
        """Hand out final outputs that no process made."""
        with self._lock:
            ended, self._ended = self._ended, []
        self._give(ended)

    def take_outputs(self, outputs: Sequence[kinds.Output]) -> None:
        """Hand out what the process made for live requests."""
        live = []
        with self._lock:
            for output in outputs:
                is_final = output.finish_reason is not None
                if self.ledger.remove(output.request_id) if is_final else self.ledger.find(output.request_id):
                    live.append(output.restore())
        self._give(live)

    def _give(self, outputs: Sequence[TokenOutput]) -> None:
        if not outputs or self.listener is None:
            return
        try:
            self.listener.on_outputs(outputs)
        except Exception:
            logger.exception("the receiver of the engine's outputs failed; their requests are aborted")
            self._abort([output.request_id for output in outputs if output.finish_reason is None])

"""The thread of a frontend process that takes the supervisor's messages, and reports the frontend's figures."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from seesay.engine.process.link import LinkClosedError
from seesay.engine.process.waker import Waker
from seesay.errors import SeesayError
from seesay.serving.frontends import state_messages as messages
from seesay.serving.frontends.questions import FrontLink, Questions

if TYPE_CHECKING:
    from seesay.engine.front.engine import AsyncEngine
    from seesay.serving.requests.submission import Answering
    from seesay.serving.traffic.metrics import ServerMetrics

logger = logging.getLogger("seesay")

REPORT_S = 1.0
"""How often the figures are reported: those of a frontend that is killed lack no more than its last second."""


class StateThread:
    """Answers what the supervisor asks, and takes its answers to `questions`. It begins at once.

    num_frontends_up: the processes that answer on the server's port. turns: cancels a running turn, by the number of
    the question that began it.
    """

    def __init__(
        self, link: FrontLink, questions: Questions, engine: AsyncEngine, metrics: ServerMetrics, answering: Answering
    ) -> None:
        self.num_frontends_up = 1
        self.turns: dict[int, Callable[[], object]] = {}
        self._link = link
        self._questions = questions
        self._engine = engine
        self._metrics = metrics
        self._answering = answering
        self._is_closed = False
        self._waker = Waker()
        self._thread = threading.Thread(target=self._hear, name="seesay-shared-state", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Report the last figures, and take no more messages."""
        self._is_closed = True
        self._waker.wake()
        self._thread.join()
        self._waker.close()
        with contextlib.suppress(LinkClosedError):
            self._report()

    def _hear(self) -> None:
        reported_at_s = time.monotonic()
        try:
            while not self._is_closed:
                due_s = reported_at_s + REPORT_S - time.monotonic()
                if due_s <= 0:
                    reported_at_s = time.monotonic()
                    self._report()
                elif self._link.wait(due_s, self._waker.fileno()):
                    self._take(self._link.receive())
        except LinkClosedError:
            return  # the supervisor has ended, and so will this process
        except Exception:
            logger.exception("the shared state of this frontend cannot be understood; the frontend ends")
            os.kill(os.getpid(), signal.SIGTERM)

    def _report(self, number: int | None = None) -> None:
        self._link.send(messages.Figures(self._metrics.read_frontend(), number))

    def _take(self, message: messages.ToFrontend) -> None:
        match message:
            case messages.CancelTurn(begun):
                self.turns.get(begun, lambda: None)()
            case messages.FrontsUp(num):
                self.num_frontends_up = num
            case messages.WantFigures(number):
                self._report(number)
            case messages.DoAbort(number, turn, rid):
                self._link.send(messages.RequestsAborted(number, self._answering.abort(turn.restore(), rid)))
            case messages.DoReset(number):
                threading.Thread(target=self._reset, args=(number,), name="seesay-reset", daemon=True).start()
            case messages.Start():
                raise TypeError("the frontend has been started already")
            case _:
                self._questions.take(message.number, message)

    def _reset(self, number: int) -> None:
        try:
            self._engine.reset_caches()
        except SeesayError as error:  # closed
            logger.warning("the caches of a frontend were not reset: %s", error)
        with contextlib.suppress(LinkClosedError):
            self._link.send(messages.CachesReset(number))

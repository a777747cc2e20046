"""The thread that starts an engine process, hears it, and starts it again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from seesay.engine.process import kinds
from seesay.engine.process.failures import HungError, make_lost_error
from seesay.engine.process.origin import Child, Origin
from seesay.engine.process.remote.message_taker import MessageTaker
from seesay.engine.process.remote.request_sender import RequestSender
from seesay.engine.process.remote.silence_watch import SilenceWatch
from seesay.engine.process.remote.state import ProcessState
from seesay.engine.process.waker import Waker
from seesay.engine.watchdog import ENGINE, Fault
from seesay.errors import ErrorCode, RequestError, SeesayError
from seesay.values import EngineStats

logger = logging.getLogger("seesay")

CLOSE_S = 10.0
"""Longest wait for the process to end by itself, once it was asked to."""
_FIRST_DELAY_S, _MAX_DELAY_S = 0.2, 10.0
"""The system is asked again for a process after a while, which doubles each time."""
POLL_S = 0.5
_LAST_WORDS_S = 0.2
"""Messages of a process that has died are waited for no longer."""


class ProcessKeeper:
    """Keeps a process that answers the requests of `sender`, until it `is_closing`. `waker` wakes up its thread."""

    def __init__(
        self,
        state: ProcessState,
        origin: Origin,
        waker: Waker,
        sender: RequestSender,
        taker: MessageTaker,
        *,
        step_timeout_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_closing = False
        self._state = state
        self._origin = origin
        self._waker = waker
        self._sender = sender
        self._taker = taker
        self._step_timeout_s = step_timeout_s
        self._clock = clock
        self._delay_s = _FIRST_DELAY_S  # before the system is asked again for a process
        self.thread = threading.Thread(target=self._run, name="seesay-engine-process", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        """Start the process, hear it, and start it again, until closed."""
        while not self.is_closing and self._state.failure is None:
            if self._state.sleeps_without_process:
                self._sender.refuse_waiting()
            self._sender.requests.hand_out()  # report lost requests now, not when the next process is up
            if self._state.sleeps_without_process:
                self._waker.wait()
            elif (child := self._try_open()) is not None:
                self._keep(child)
        while not self.is_closing:  # what is asked for now ends with an error
            self._sender.requests.hand_out()
            self._waker.wait()
        with self._state.changed:
            self._state.note_close()
            left = self._sender.requests.ledger.all_ids()
        for request_id in left:
            message = "the engine was closed before the answer was complete"
            self._sender.end(request_id, "error", RequestError(ErrorCode.CLOSED, message))
        self._sender.requests.hand_out()
        self._waker.close()

    def _try_open(self) -> Child | None:
        """Start or join a process. Where the system refuses another one, that is tried again; any other failure is the
        end of a process."""
        try:
            child = self._origin.open()
        except Exception as error:
            if self._state.facts is None or not isinstance(error, OSError) or isinstance(error, ConnectionError):
                self._note_end(None, error)
            else:
                self._wait_for_system(error)
            return None
        self._delay_s = _FIRST_DELAY_S
        return child

    def _keep(self, child: Child) -> None:
        """Hear a process until it ends."""
        try:
            end = self._hear(child)
        except Exception as error:
            logger.exception("the messages of the engine process cannot be read")
            end = error
        finally:
            self._state.note_deaf(child)  # what comes while it is ended waits for the next process
            child.end()
        if not self.is_closing:
            self._note_end(child, end)

    def _wait_for_system(self, error: OSError) -> None:
        """Wait before starting a process again that the system refused, for example because descriptors ran out."""
        self._state.note_no_start(error)
        logger.error("the engine process cannot be started: %s; trying again in %g s", error, self._delay_s)
        until_s = self._clock() + self._delay_s
        self._delay_s = min(_MAX_DELAY_S, 2 * self._delay_s)
        while not self.is_closing and (left_s := until_s - self._clock()) > 0:
            self._sender.requests.hand_out()
            self._waker.wait(left_s)

    def _hear(self, child: Child) -> Exception:
        """Take the messages of a process until it has ended, hangs, or is to end. Returns why."""
        watch = SilenceWatch(
            self._state, is_owner=self._origin.is_owner, step_timeout_s=self._step_timeout_s, clock=self._clock
        )
        while True:
            self._sender.requests.hand_out()
            if self.is_closing:
                return self._let_end(child)
            if child.link.is_broken:
                self._state.note_deaf(child)
            if self._state.deaf is child:
                return self._hear_out(child)
            if child.wait(POLL_S, self._waker.fileno()) or (child.find_end() and child.link.wait(_LAST_WORDS_S)):
                watch.hear()
                end = self._taker.take(child, child.link.receive())
            else:
                end = self._find_end(child, watch)
            if end is not None:
                return end

    def _find_end(self, child: Child, watch: SilenceWatch) -> Exception | None:
        """Return why a process that says nothing now has ended or must end, if it has or must."""
        self._waker.take()
        if self._state.child is not child and not self._origin.is_owner:
            self._sender.refuse_waiting()
        if end := child.find_end():
            return SeesayError(f"the engine process died ({end})")
        return watch.find_hung(child)

    def _hear_out(self, child: Child) -> Exception:
        """Take what a process has said to which nothing can be sent any more. Returns why it ended, or must end."""
        until_s = self._clock() + _LAST_WORDS_S
        while child.link.wait(_LAST_WORDS_S) and (child.find_end() or self._clock() < until_s):
            error = self._taker.take(child, child.link.receive())
            if error is not None:
                return error
        if end := child.find_end():
            return SeesayError(f"the engine process died ({end})")
        return HungError(Fault(ENGINE, "it takes no messages"))

    def _let_end(self, child: Child) -> Exception:
        """Ask a process to end, and hear it out for a moment. One that is still loading is killed."""
        if self._state.child is child:
            self._sender.tell(kinds.Stop())
            deadline_s = self._clock() + CLOSE_S
            while self._clock() < deadline_s:
                if child.wait(POLL_S) or (child.find_end() and child.link.wait(_LAST_WORDS_S)):
                    self._taker.take(child, child.link.receive())
                elif child.find_end():
                    break
        return SeesayError("the engine was closed")

    def _note_end(self, child: Child | None, error: Exception) -> None:
        """A process has ended: end its requests with an error, and the waiting ones if no process is started again."""
        with self._state.changed:
            is_first = self._state.facts is None
            reason = self._state.note_end(error)
            self._sender.requests.ledger.embeddings.encoded.clear()
            self._taker.stats = EngineStats()
            lost = [] if child is None else self._sender.requests.ledger.end_receiver(child)
            if not is_first and self._state.failure is not None:
                lost = self._sender.requests.ledger.all_ids()
        if not is_first:
            logger.error("%s", reason)
        for request_id in lost:
            self._sender.end(request_id, "error", make_lost_error(reason))

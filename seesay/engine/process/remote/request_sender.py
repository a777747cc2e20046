"""Requests, and what is said of them, on their way to an engine process."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from seesay.engine.commands import make_sleeping_error
from seesay.engine.failures import explain
from seesay.engine.process import kinds
from seesay.engine.process.link import LinkClosedError
from seesay.engine.process.origin import Child
from seesay.engine.process.remote.ledger import Entry
from seesay.engine.process.remote.requests import Requests
from seesay.engine.process.remote.state import ProcessState
from seesay.engine.process.waker import Waker
from seesay.engine.process.writer import Done
from seesay.engine.token_messages import Features
from seesay.errors import RequestError
from seesay.values import FinishReason


class RequestSender:
    """Sends `requests` to the process of `state`, from any thread, and ends those that it cannot have. `waker` wakes up
    the thread that hears the process."""

    def __init__(self, state: ProcessState, waker: Waker) -> None:
        self.requests = Requests(state.changed, self.abort)
        self._state = state
        self._changed = state.changed
        self._waker = waker

    def send(self, entry: Entry) -> None:
        """Send a request to the process, or queue it while there is no process. Under the lock, so that what is told
        of the request later comes later; sending waits for nobody."""
        request_id = entry.request.request_id
        try:
            with self._changed:
                child = self._state.child
                if child is None or self.requests.ledger.find(request_id) is not entry or entry.receiver is not None:
                    return
                message = kinds.Submit(self.requests.ledger.send(entry, child))
                child.link.send(message, partial(self._note_written, entry, child))
        except LinkClosedError:  # the thread sends what waits to the next process
            assert child is not None
            with self._changed:
                self.requests.ledger.take_back(entry)
                has_next = not self._state.note_deaf(child)
            if has_next:
                self.send(entry)
            self._waker.wake()  # the thread may wait for nothing but a command
        except Exception as error:
            self.end(request_id, "error", explain(error))

    def _note_written(self, entry: Entry, child: Child, error: OSError | None) -> None:
        """The message of a request is written, or there was no memory for it."""
        with self._changed:
            if entry.receiver is child and error is None:
                self.requests.ledger.note_written(entry)
        if error is not None:
            self.end(entry.request.request_id, "error", explain(error))

    def tell(self, message: kinds.ToCore, done: Done | None = None) -> None:
        """Send a message that may be lost if the process has ended."""
        child = self._state.child
        if child is not None:
            try:
                child.link.send(message, done)
            except LinkClosedError:
                self._state.note_deaf(child)
                self._waker.wake()

    def abort(self, request_ids: Iterable[int]) -> None:
        """Abort requests."""
        with self._changed:
            found = [
                entry for request_id in request_ids if (entry := self.requests.ledger.find(request_id)) is not None
            ]
            unsent = [entry.request.request_id for entry in found if not entry.is_written]
        if told := tuple(entry.request.request_id for entry in found if entry.receiver is not None):
            self.tell(kinds.Abort(told))
        for request_id in unsent:  # also one whose message waits: it may wait for long
            self.end(request_id, "abort")

    def give_features(self, request_id: int, item_index: int, features: Features | RequestError) -> None:
        """Answer `CoreListener.on_features_wanted`."""
        if isinstance(features, RequestError):
            self.tell(kinds.GiveFeatures(request_id, item_index, {}, kinds.Failure.of(features)))
            return

        def fail(error: Exception | None) -> None:  # such as no memory to send them
            if error is not None:
                self.tell(kinds.GiveFeatures(request_id, item_index, {}, kinds.Failure.of(explain(error))))

        try:
            self.tell(kinds.GiveFeatures(request_id, item_index, dict(features), None), fail)
        except Exception as error:
            fail(error)

    def end(self, request_id: int, reason: FinishReason, error: RequestError | None = None) -> None:
        """End a request without the process: its final output is handed out by the thread."""
        self.requests.end(request_id, reason, error)
        if self._state.is_over:
            self.requests.hand_out()
        self._waker.wake()

    def refuse_waiting(self) -> None:
        """End the requests that wait for a process while the engine sleeps without one: it may sleep for long."""
        with self._changed:
            waiting = [entry.request.request_id for entry in self.requests.ledger.waiting()]
        if waiting and (status := self._state.confirm_status()).asleep:
            for request_id in waiting:
                self.end(request_id, "error", make_sleeping_error(status))

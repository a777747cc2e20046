"""A frontend's state of its engine process: whether one takes requests, and if not, why."""

from __future__ import annotations

import threading

from seesay.engine.commands import ModelStatus, make_sleeping_error
from seesay.engine.process.failures import HungError, make_lost_error
from seesay.engine.process.origin import Child, Origin
from seesay.engine.token_messages import CoreFacts
from seesay.engine.watchdog import ENGINE, Fault
from seesay.errors import RequestError, SeesayError

MAX_DEATHS = 3
"""A process that ends so often without one token in between is not started again."""


class ProcessState:
    """`changed` guards the attributes where more than one of them is read or changed, and is notified of changes.

    child: the process, while it takes requests. deaf: one to which a message could not be sent. facts: those of the
    first process; None until it was loaded. status: as the process has told it last. fault: why no request is computed
    now. silence: that the process has not been heard for a while, as long as that is so. failure: why no process is
    started again. is_over: whether the core is closed, so that none is waited for.
    """

    def __init__(self, origin: Origin) -> None:
        self.changed = threading.Condition()
        self.child: Child | None = None
        self.deaf: Child | None = None
        self.facts: CoreFacts | None = None
        self.status = ModelStatus()
        self.fault: Fault | None = Fault(ENGINE, "the engine process is being started")
        self.failure: Exception | None = None
        self.silence: Fault | None = None
        self.is_over = False
        self.num_restarts = 0
        self._origin = origin
        self._num_deaths = 0  # since the last token

    @property
    def sleeps_without_process(self) -> bool:
        """Whether the process of this owner has died while it slept. The memory that it freed may be used by others:
        another process is started when this one would have been woken up."""
        return self._origin.is_owner and self.child is None and self.facts is not None and bool(self.status.asleep)

    def confirm_status(self) -> ModelStatus:
        """Return the status: the owner's where this core is not connected, or has been notified that the engine
        sleeps."""
        status = self._origin.read_status() if self.child is None or self.status.asleep else None
        return self.status if status is None else status

    def find_refusal(self) -> RequestError | None:
        """Return why no request is taken, not even to wait."""
        if self.sleeps_without_process:
            return make_sleeping_error(self.status)
        return None if self.failure is None else make_lost_error(str(self.failure))

    def note_start(self, child: Child, facts: CoreFacts, status: ModelStatus) -> None:
        """A process takes requests."""
        with self.changed:
            self.facts = facts
            self.status = status
            self.child = child
            self.fault = self.silence = None
            self.changed.notify_all()

    def note_tokens(self) -> None:
        """The process has computed something."""
        self._num_deaths = 0

    def note_deaf(self, child: Child) -> bool:
        """A message could not be sent to a process: it has died, or must be ended. Returns whether no other one takes
        requests already."""
        with self.changed:
            if self.child is child:
                self.child, self.deaf = None, child
            return self.deaf is child

    def note_no_start(self, error: OSError) -> None:
        """The system starts no process now: it is asked again."""
        self.fault = Fault(ENGINE, f"the engine process cannot be started ({error}); it is tried again")

    def note_end(self, error: Exception) -> str:
        """A process has ended, or could not be started. Decides whether another one is started; returns what to tell
        those who lost their requests."""
        with self.changed:
            self.child = self.deaf = self.silence = None
            self._num_deaths += 1
            self.num_restarts += 1
            if self.facts is None:
                self.failure = error
            elif self._num_deaths >= MAX_DEATHS:
                count = f"ended {self._num_deaths} times without an answer in between"
                self.failure = SeesayError(f"{error}; the engine {count} and is not started again: see its log")
            again = "is started again by wake_up()" if self.status.asleep else "is started again"
            reason = str(self.failure or f"{error}; the engine {again}")
            self.fault = Fault(error.fault.part if isinstance(error, HungError) else ENGINE, reason)
            self.changed.notify_all()
        return reason

    def note_close(self) -> None:
        """No process is started any more, and none is waited for."""
        with self.changed:
            self.child = None
            self.is_over = True
            self.changed.notify_all()

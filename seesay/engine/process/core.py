"""`ProcessCore`: the core in a process of its own. One thread starts that process, hears it, and starts it again."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from seesay.engine.commands import Command, ModelStatus, ResetCaches, WakeUp, make_sleeping_error
from seesay.engine.core import CoreListener
from seesay.engine.failures import explain
from seesay.engine.messages import CoreFacts, Features, TokenRequest
from seesay.engine.process import kinds
from seesay.engine.process.command_answers import CommandAnswers
from seesay.engine.process.failures import HungError, make_lost_error, restore_failure
from seesay.engine.process.launch import END_S
from seesay.engine.process.ledger import Entry
from seesay.engine.process.link import LinkClosedError
from seesay.engine.process.origin import Child, JoinedProcess, Origin, OwnProcess
from seesay.engine.process.requests import Requests
from seesay.engine.process.waker import Waker
from seesay.engine.watchdog import ENGINE, Fault, find_hung, hang_limit_s
from seesay.errors import ErrorCode, RequestError, SeesayError
from seesay.values import EngineStats, FinishReason

logger = logging.getLogger("seesay")

MAX_DEATHS = 3
"""A process that ends so often without one token in between is not started again."""
CLOSE_S = 10.0
"""Longest wait for the process to end by itself, once it was asked to."""
BEAT_S = 1.0
_POLL_S = 0.5
_DIED_ASLEEP = "the engine process died while it slept, wake_up() starts it again"
_LAST_WORDS_S = 0.2
"""Messages of a process that has died are waited for no longer."""


class ProcessCore:
    """An `EngineCore` whose model is in another process.

    When that process dies or hangs, the requests that it had end with an error, and it is started again; the others
    wait for that. Meanwhile `fault` says so.
    """

    def __init__(
        self,
        origin: Origin,
        *,
        step_timeout_s: float | None = None,
    ) -> None:
        """Use `load` or `join`, then `wait_until_loaded`."""
        self.fault: Fault | None = Fault(ENGINE, "the engine process is being started")
        self._step_timeout_s = step_timeout_s
        self._beat_s = _choose_beat_s(step_timeout_s)
        self._origin = origin
        self._facts: CoreFacts | None = None
        self._failure: Exception | None = None  # why it is not started again
        self._changed = threading.Condition()  # guards what follows
        self._child: Child | None = None  # the process, while it takes requests
        self.status = ModelStatus()
        self._requests = Requests(self._changed, self.abort)
        self._ledger = self._requests.ledger
        self._answers = CommandAnswers(self._changed)
        self._is_closing = False
        self._stats = EngineStats()
        self._num_restarts = 0
        self._num_deaths = 0  # since the last token
        self._is_over = False  # the thread has ended
        self._process_id = os.getpid()
        self._waker = Waker()
        self._thread = threading.Thread(target=self._run, name="seesay-engine-process", daemon=True)
        self._thread.start()

    @classmethod
    def load(
        cls,
        folder: Path,
        engine: Mapping[str, Any],
        vision: Mapping[str, Any],
        *,
        step_timeout_s: float | None = None,
        door: socket.socket | None = None,
    ) -> ProcessCore:
        """Start a process, which loads the model.

        `engine` and `vision` are the fields of the configurations, as plain data. `door` of `open_door`: other fronts
        may `join`.
        """
        level = min(logging.getLogger("seesay").getEffectiveLevel(), logging.INFO)
        beat_s = _choose_beat_s(step_timeout_s)
        start = kinds.Start(str(folder), dict(engine), dict(vision), level, beat_s)
        return cls(OwnProcess(start, door), step_timeout_s=step_timeout_s)

    @classmethod
    def join(
        cls,
        address: str,
        *,
        read_status: Callable[[], ModelStatus | None] | None = None,
        step_timeout_s: float | None = None,
    ) -> ProcessCore:
        """Use the process behind the door at `address`. Its owner, another process, starts, ends and restarts it.

        `read_status` asks the owner for the status, and returns None when it gets no answer: the engine process may
        have been woken up, and a process that died asleep may be started, before this one hears of it.
        """
        return cls(JoinedProcess(address, read_status), step_timeout_s=step_timeout_s)

    def wait_until_loaded(self) -> ProcessCore:
        """Return this core once its model is loaded. Raises what the process raised; the core is closed then."""
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._facts is not None or self._failure is not None)
            if self._failure is not None:
                raise self._failure
        except BaseException:  # also Ctrl-C
            self.close()
            raise
        return self

    # --- called from other threads ------------------------------------------------------------------------------------

    @property
    def facts(self) -> CoreFacts:
        """The facts that were settled while the model was loaded."""
        assert self._facts is not None
        return self._facts

    @property
    def pid(self) -> int | None:
        """The id of the process; None while there is none that takes requests."""
        child = self._child
        return None if child is None else child.pid

    @property
    def is_given_up(self) -> bool:
        """Whether the process has ended and is not started again."""
        return self._failure is not None

    def confirm_status(self) -> ModelStatus:
        """Return the status: the owner's where this core is not connected, or has heard that the engine sleeps."""
        status = self._origin.read_status() if self._child is None or self.status.asleep else None
        return self.status if status is None else status

    def start(self, listener: CoreListener) -> None:
        """Hand outputs to `listener`, from the thread that hears the process."""
        self._requests.listener = listener

    def submit(self, requests: Sequence[TokenRequest]) -> None:
        """Answer requests. They wait while no process takes them."""
        for request in requests:
            with self._changed:
                entry = self._ledger.add(request)
                error = self._find_refusal(request)
            if error is None:
                self._send_request(entry)
            else:
                self._end(request.request_id, "error", error)

    def finish(self, request_id: int, reason: FinishReason) -> None:
        """End a request whose text is complete."""
        self._tell(kinds.Finish(request_id, reason))

    def abort(self, request_ids: Iterable[int]) -> None:
        """Abort requests."""
        ids = set(request_ids)
        with self._changed:
            waiting = {entry.request.request_id for entry in self._ledger.waiting()} & ids
        for request_id in waiting:
            self._end(request_id, "abort")
        if ids - waiting:
            self._tell(kinds.Abort(tuple(ids - waiting)))

    def expect_media(self, request_ids: Iterable[int]) -> None:
        """Let the encoder wait a moment for the media of these requests."""
        if ids := tuple(request_ids):
            self._tell(kinds.ExpectMedia(ids))

    def forget_media(self, request_ids: Iterable[int]) -> None:
        """Expect no media of these requests any more."""
        if ids := tuple(request_ids):
            self._tell(kinds.ForgetMedia(ids))

    def is_encoded(self, item_hash: bytes) -> bool:
        """Whether this embedding is there or being made, as far as the process has told, or was asked for."""
        return self._ledger.is_encoded(item_hash)

    def give_features(self, request_id: int, item_index: int, features: Features | RequestError) -> None:
        """Answer `CoreListener.on_features_wanted`."""
        if isinstance(features, RequestError):
            self._tell(kinds.GiveFeatures(request_id, item_index, {}, kinds.Failure.of(features)))
            return
        try:
            self._tell(kinds.GiveFeatures(request_id, item_index, dict(features), None))
        except Exception as error:  # such as no memory to send them
            self._tell(kinds.GiveFeatures(request_id, item_index, {}, kinds.Failure.of(explain(error))))

    def run_command(self, command: Command) -> None:
        """Have the process do it, and wait until it is done. A process that is being started is waited for."""
        if self._child is None and isinstance(command, ResetCaches):
            return  # it has no caches
        while (child := self._wait_for_child(command)) is not None:
            done = self._ask(child, command)
            if done is None and isinstance(command, WakeUp):
                self._wait_for_end(child)  # it was dead already, or died now: the next one is awake
                continue
            if done is None and not isinstance(command, ResetCaches):
                raise make_lost_error(f"the engine process died before {type(command).__name__} was done")
            if done is not None and done.failure is not None:
                raise done.failure.restore()
            if done is not None and done.raised is not None:
                raise restore_failure(done.raised)
            return

    def _wait_for_child(self, command: Command) -> Child | None:
        """Return the process that is to do a command, once there is one. None for a command that is done without: a
        part wakes up of an engine whose process died asleep, while another part still sleeps."""
        while True:
            if not self._origin.is_owner and self._child is None and self.confirm_status().asleep:
                raise make_lost_error(_DIED_ASLEEP)
            with self._changed:
                if self._sleeps_without_process:
                    if not isinstance(command, WakeUp):
                        raise make_lost_error(_DIED_ASLEEP)
                    asleep = tuple(part for part in self.status.asleep if part not in command.tags)
                    self.status = replace(self.status, asleep=asleep)
                    self._waker.wake()
                    if asleep:
                        return None
                if self._changed.wait_for(lambda: self._child or self._failure or self._is_over, _POLL_S):
                    if self._child is None:
                        raise make_lost_error(str(self._failure or "the engine is closed"))
                    return self._child

    def _wait_for_end(self, child: Child) -> None:
        """Wait until it is known that a process has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._child is not child)

    def _ask(self, child: Child, command: Command) -> kinds.Done | None:
        """Return a process's answer to a command; None if it has ended."""
        return self._answers.ask(child, command, lambda: self._child is child)

    @property
    def _sleeps_without_process(self) -> bool:
        """Whether the process of this owner has died while it slept. The memory that it freed may be used by others:
        another process is started when this one would have been woken up."""
        return self._origin.is_owner and self._child is None and self._facts is not None and bool(self.status.asleep)

    def stats(self) -> EngineStats:
        """The counts that came last. They begin anew with each process, but for the number of restarts."""
        return EngineStats.merge(self._stats, EngineStats(total_engine_restarts=self._num_restarts))

    def stop(self) -> None:
        """End all requests with an error, and the process. Waits for nothing."""
        self._is_closing = True
        self._waker.wake()

    def close(self) -> None:
        """`stop`, and wait until that is done. A process that does not end is killed."""
        if self._process_id == os.getpid():
            self.stop()
            if threading.current_thread() is not self._thread:
                self._thread.join(CLOSE_S + END_S + _POLL_S)

    # --- sending ------------------------------------------------------------------------------------------------------

    def _find_refusal(self, request: TokenRequest) -> RequestError | None:
        """Why a request is not computed."""
        if request.params.logits_processors:
            return RequestError(
                ErrorCode.INVALID_REQUEST,
                "logits_processors are functions of this process, and the engine's cannot call them: load the model "
                "with EngineConfig(engine_process=False)",
                "logits_processors",
            )
        if self._is_closing:
            return RequestError(ErrorCode.CLOSED, "the engine is closed")
        if self._sleeps_without_process:
            return make_sleeping_error(self.status)
        return None if self._failure is None else make_lost_error(str(self._failure))

    def _send_request(self, entry: Entry) -> None:
        """Send a request to the process, or leave it waiting where there is none."""
        request_id = entry.request.request_id
        with self._changed:
            child = self._child
            if child is None or self._ledger.find(request_id) is not entry or entry.receiver is not None:
                return
            message = self._ledger.send(entry, child)
        try:
            child.link.send(kinds.Submit(message))
        except LinkClosedError:  # the process has died: its thread finds out, and sends what waits to the next one
            with self._changed:
                self._ledger.take_back(entry)
                if self._child is child:
                    self._child = None
                    return
            self._send_request(entry)
            self._waker.wake()  # the thread may wait for nothing but a command
        except Exception as error:
            self._end(request_id, "error", explain(error))

    def _tell(self, message: kinds.ToCore) -> None:
        """Send a message that does not matter to a process that is gone."""
        child = self._child
        if child is not None:
            with contextlib.suppress(LinkClosedError):
                child.link.send(message)

    def _end(self, request_id: int, reason: FinishReason, error: RequestError | None = None) -> None:
        """End a request without the process: its final output is handed out by the thread."""
        self._requests.end(request_id, reason, error)
        if self._is_over:
            self._requests.hand_out()
        self._waker.wake()

    def _refuse_waiting(self) -> None:
        """End the requests that wait for a process while the engine sleeps without one: it may sleep for long."""
        with self._changed:
            waiting = [entry.request.request_id for entry in self._ledger.waiting()]
        if waiting and (status := self.confirm_status()).asleep:
            for request_id in waiting:
                self._end(request_id, "error", make_sleeping_error(status))

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Start the process, hear it, and start it again, until closed."""
        while not self._is_closing and self._failure is None:
            if self._sleeps_without_process:
                self._refuse_waiting()
            self._requests.hand_out()  # nobody waits for the next process to learn that a request is lost
            if self._sleeps_without_process:
                self._waker.wait()
                continue
            try:
                child = self._origin.open()
            except Exception as error:
                self._note_end(None, error)
                continue
            try:
                end = self._hear(child)
            except Exception as error:
                logger.exception("the engine process cannot be heard")
                end = error
            finally:
                child.end()
            if not self._is_closing:
                self._note_end(child, end)
        while not self._is_closing:  # what is asked for now ends with an error
            self._requests.hand_out()
            self._waker.wait()
        with self._changed:
            self._child = None
            self._is_over = True
            left = self._ledger.all_ids()
            self._changed.notify_all()
        for request_id in left:
            message = "the engine was closed before the answer was complete"
            self._end(request_id, "error", RequestError(ErrorCode.CLOSED, message))
        self._requests.hand_out()
        self._waker.close()

    def _hear(self, child: Child) -> Exception:
        """Take the messages of a process until it has ended, hangs, or is to end. Returns why."""
        heard_at_s = time.monotonic()
        while True:
            self._requests.hand_out()
            if self._is_closing:
                return self._let_end(child)
            if child.wait(_POLL_S, self._waker.fileno()) or (child.find_end() and child.link.wait(_LAST_WORDS_S)):
                heard_at_s = time.monotonic()
                error = self._take(child, child.link.receive())
                if error is not None:
                    return error
                continue
            self._waker.take()
            if self._child is not child and not self._origin.is_owner:
                self._refuse_waiting()
            if end := child.find_end():
                return SeesayError(f"the engine process died ({end})")
            silent_s = time.monotonic() - heard_at_s
            if self._child is child and silent_s > self._limit_s() + 2 * self._beat_s:
                return HungError(Fault(ENGINE, f"it has said nothing for {silent_s:.0f} s"))

    def _limit_s(self) -> float:
        return hang_limit_s(self._step_timeout_s, self.facts.device)

    def _take(self, child: Child, message: kinds.ToFront) -> Exception | None:
        """Take a message. Returns why the process must end, if it must."""
        match message:
            case kinds.Outputs(outputs, news):
                self._take_news(news)
                self._requests.take_outputs(outputs)
            case kinds.Beat(busy_s, news):
                self._take_news(news)
                if hung := find_hung(busy_s, self._limit_s()):
                    return HungError(hung)
            case kinds.FeaturesWanted(request_id, item_index):
                self._take_wish(request_id, item_index)
            case kinds.Done(_, _, _, news):
                self._take_news(news)
                self._answers.take(message)
            case kinds.StatusChanged(status):
                self.status = status
            case kinds.LogRecord(name, level, text):
                logging.getLogger(name).log(level, "%s", text)
            case kinds.Hello():
                child.link.send(self._origin.answer_hello(self.status))
            case kinds.Started(facts, status):
                self._take_start(child, facts, status)
            case kinds.StartFailed():
                return restore_failure(message)
        return None

    def _take_start(self, child: Child, facts: CoreFacts, status: ModelStatus) -> None:
        """The process takes requests: send it those that wait."""
        with self._changed:
            self._facts = facts
            self.status = status
            self._child = child
            self.fault = None
            waiting = self._ledger.waiting()
            self._changed.notify_all()
        for entry in waiting:
            self._send_request(entry)

    def _take_wish(self, request_id: int, item_index: int) -> None:
        """The process wants features that were not sent with their request."""
        with self._changed:
            item = self._ledger.find_item(request_id, item_index)
        if item is not None and item.has_arrays:
            self.give_features(request_id, item_index, item.features)
        elif item is not None and self._requests.listener is not None:
            self._requests.listener.on_features_wanted(request_id, item_index)

    def _take_news(self, news: kinds.News) -> None:
        with self._changed:
            self._ledger.note_encoded(news.encoded, news.dropped)
        if news.stats is not None:
            if news.stats.total_step_tokens:  # also those of other fronts
                self._num_deaths = 0
            self._stats = news.stats

    def _let_end(self, child: Child) -> Exception:
        """Ask a process to end, and hear it out for a moment. One that is still loading is killed."""
        if self._child is child:
            self._tell(kinds.Stop())
            deadline_s = time.monotonic() + CLOSE_S
            while time.monotonic() < deadline_s:
                if child.wait(_POLL_S) or (child.find_end() and child.link.wait(_LAST_WORDS_S)):
                    self._take(child, child.link.receive())
                elif child.find_end():
                    break
        return SeesayError("the engine was closed")

    def _note_end(self, child: Child | None, error: Exception) -> None:
        """A process has ended: its requests end with an error. Decides whether another one is started."""
        with self._changed:
            is_first = self._facts is None
            self._child = None
            self._num_deaths += 1
            self._num_restarts += 1
            self._ledger.encoded.clear()
            self._stats = EngineStats()
            lost = [] if child is None else self._ledger.sent_to(child)
            if is_first:
                self._failure = error
            elif self._num_deaths >= MAX_DEATHS:
                count = f"{self._num_deaths} times without an answer in between"
                self._failure = SeesayError(f"{error}, {count}, and is not started again: see its log")
                lost = self._ledger.all_ids()
            again = "is started again by wake_up()" if self.status.asleep else "is started again"
            reason = str(self._failure or f"{error} and {again}")
            self.fault = Fault(error.fault.part if isinstance(error, HungError) else ENGINE, reason)
            self._changed.notify_all()
        if not is_first:
            logger.error("%s", reason)
        for request_id in lost:
            self._end(request_id, "error", make_lost_error(reason))


def _choose_beat_s(step_timeout_s: float | None) -> float:
    return BEAT_S if step_timeout_s is None else min(BEAT_S, step_timeout_s / 4)

"""`ProcessCore`: the core in a process of its own. One thread starts that process, reads its messages, and restarts
it."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from seesay.engine.commands import Command, ModelStatus, make_sleeping_error
from seesay.engine.engine_core import CoreListener
from seesay.engine.failures import explain
from seesay.engine.process import kinds
from seesay.engine.process.command_sender import CommandSender
from seesay.engine.process.failures import HungError, make_lost_error, restore_failure
from seesay.engine.process.launch import END_S
from seesay.engine.process.ledger import Entry
from seesay.engine.process.link import LinkClosedError
from seesay.engine.process.origin import Child, JoinedProcess, MakeOrigin, Origin, OwnProcess
from seesay.engine.process.requests import Requests
from seesay.engine.process.state import ProcessState
from seesay.engine.process.waker import Waker
from seesay.engine.process.writer import Done
from seesay.engine.token_messages import CoreFacts, Features, TokenRequest
from seesay.engine.watchdog import ENGINE, Fault, find_hung, hang_limit_s
from seesay.errors import ErrorCode, RequestError, SeesayError
from seesay.llm.plans.sampling_params import NamedProcessor
from seesay.system.liveness import LIMIT_S, SUSPECT_S, Silence, is_stopped
from seesay.values import EngineStats, FinishReason

logger = logging.getLogger("seesay")

CLOSE_S = 10.0
"""Longest wait for the process to end by itself, once it was asked to."""
BEAT_S = 1.0
_FIRST_DELAY_S, _MAX_DELAY_S = 0.2, 10.0
"""The system is asked again for a process after a while, which doubles each time."""
_POLL_S = 0.5
_JOINED_S = 5.0
"""The owner of a process ends it first: another frontend that ended its connection would join the same process
again."""
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
        self._step_timeout_s = step_timeout_s
        self._beat_s = _choose_beat_s(step_timeout_s)
        self._origin = origin
        self._state = ProcessState(origin)
        self._changed = self._state.changed  # also guards the ledger
        self._requests = Requests(self._changed, self.abort)
        self._ledger = self._requests.ledger
        self._waker = Waker()
        self._commands = CommandSender(self._state, origin, self._waker)
        self._is_closing = False
        self._delay_s = _FIRST_DELAY_S  # before the system is asked again for a process
        self._stats = EngineStats()
        self._process_id = os.getpid()
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
        listener: socket.socket | None = None,
        make_origin: MakeOrigin | None = None,
    ) -> ProcessCore:
        """Start a process, which loads the model.

        `engine` and `vision` are the fields of the configurations, as plain data. `listener` of `open_listener`: other
        frontends may `join`. make_origin: what starts the process, in place of `OwnProcess`.
        """
        level = min(logging.getLogger("seesay").getEffectiveLevel(), logging.INFO)
        beat_s = _choose_beat_s(step_timeout_s)
        start = kinds.Start(str(folder), dict(engine), dict(vision), level, beat_s)
        return cls((make_origin or OwnProcess)(start, listener), step_timeout_s=step_timeout_s)

    @classmethod
    def join(
        cls,
        address: str,
        *,
        read_status: Callable[[], ModelStatus | None] | None = None,
        step_timeout_s: float | None = None,
    ) -> ProcessCore:
        """Use the process behind the listener at `address`. Its owner, another process, starts, ends and restarts it.

        `read_status` asks the owner for the status, and returns None when it gets no answer: the engine process may
        have been woken up, and a process that died asleep may be started, before this one is notified.
        """
        return cls(JoinedProcess(address, read_status), step_timeout_s=step_timeout_s)

    def wait_until_loaded(self) -> ProcessCore:
        """Return this core once its model is loaded. Raises what the process raised; the core is closed then."""
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._state.facts is not None or self._state.failure is not None)
            if self._state.failure is not None:
                raise self._state.failure
        except BaseException:  # also Ctrl-C
            self.close()
            raise
        return self

    # --- called from other threads ------------------------------------------------------------------------------------

    @property
    def facts(self) -> CoreFacts:
        """The facts that were settled while the model was loaded."""
        assert self._state.facts is not None
        return self._state.facts

    @property
    def fault(self) -> Fault | None:
        """Why no request is computed now."""
        return self._state.fault or self._state.silence

    @property
    def status(self) -> ModelStatus:
        """The weights that the process computes with, and whether it sleeps, as it has told last."""
        return self._state.status

    @property
    def pid(self) -> int | None:
        """The id of the process; None while no process takes requests."""
        child = self._state.child
        return None if child is None else child.pid

    @property
    def is_given_up(self) -> bool:
        """Whether the process has ended and is not started again."""
        return self._state.failure is not None

    def confirm_status(self) -> ModelStatus:
        """Return the status; that of the owner of the process where it may be another one."""
        return self._state.confirm_status()

    def start(self, listener: CoreListener) -> None:
        """Hand outputs to `listener`, from the thread that reads the process' messages."""
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
        with self._changed:
            found = [entry for request_id in request_ids if (entry := self._ledger.find(request_id)) is not None]
            unsent = [entry.request.request_id for entry in found if not entry.is_written]
        if told := tuple(entry.request.request_id for entry in found if entry.receiver is not None):
            self._tell(kinds.Abort(told))
        for request_id in unsent:  # also one whose message waits: it may wait for long
            self._end(request_id, "abort")

    def end_group(self, group_id: int) -> None:
        """Keep nothing any more for requests of a group that are still to come."""
        self._tell(kinds.EndGroup(group_id))

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

        def fail(error: Exception | None) -> None:  # such as no memory to send them
            if error is not None:
                self._tell(kinds.GiveFeatures(request_id, item_index, {}, kinds.Failure.of(explain(error))))

        try:
            self._tell(kinds.GiveFeatures(request_id, item_index, dict(features), None), fail)
        except Exception as error:
            fail(error)

    def run_command(self, command: Command) -> None:
        """Have the process do it, and wait until it is done. A process that is being started is waited for."""
        self._commands.run(command)

    def stats(self) -> EngineStats:
        """The counts that came last. They begin anew with each process, but for the number of restarts, which the owner
        of the process has."""
        num_restarts = self._state.num_restarts if self._origin.is_owner else 0
        return EngineStats.merge(self._stats, EngineStats(total_engine_restarts=num_restarts))

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
        if not all(isinstance(each, NamedProcessor) for each in request.params.logits_processors):
            return RequestError(
                ErrorCode.INVALID_REQUEST,
                "logits_processors: functions of this process cannot be called by the engine's: give them by name, as "
                "'package.module:function', or load the model with EngineConfig(engine_process=False)",
                "logits_processors",
            )
        if self._is_closing:
            return RequestError(ErrorCode.CLOSED, "the engine is closed")
        return self._state.find_refusal()

    def _send_request(self, entry: Entry) -> None:
        """Send a request to the process, or queue it while there is no process. Under the lock, so that what is told
        of the request later comes later; sending waits for nobody."""
        request_id = entry.request.request_id
        try:
            with self._changed:
                child = self._state.child
                if child is None or self._ledger.find(request_id) is not entry or entry.receiver is not None:
                    return
                message = kinds.Submit(self._ledger.send(entry, child))
                child.link.send(message, partial(self._note_written, entry, child))
        except LinkClosedError:  # the thread sends what waits to the next process
            assert child is not None
            with self._changed:
                self._ledger.take_back(entry)
                has_next = not self._state.note_deaf(child)
            if has_next:
                self._send_request(entry)
            self._waker.wake()  # the thread may wait for nothing but a command
        except Exception as error:
            self._end(request_id, "error", explain(error))

    def _note_written(self, entry: Entry, child: Child, error: OSError | None) -> None:
        """The message of a request is written, or there was no memory for it."""
        with self._changed:
            if entry.receiver is child and error is None:
                self._ledger.note_written(entry)
        if error is not None:
            self._end(entry.request.request_id, "error", explain(error))

    def _tell(self, message: kinds.ToCore, done: Done | None = None) -> None:
        """Send a message that may be lost if the process has ended."""
        child = self._state.child
        if child is not None:
            try:
                child.link.send(message, done)
            except LinkClosedError:
                self._state.note_deaf(child)
                self._waker.wake()

    def _end(self, request_id: int, reason: FinishReason, error: RequestError | None = None) -> None:
        """End a request without the process: its final output is handed out by the thread."""
        self._requests.end(request_id, reason, error)
        if self._state.is_over:
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
        while not self._is_closing and self._state.failure is None:
            if self._state.sleeps_without_process:
                self._refuse_waiting()
            self._requests.hand_out()  # report lost requests now, not when the next process is up
            if self._state.sleeps_without_process:
                self._waker.wait()
                continue
            try:
                child = self._origin.open()
            except Exception as error:
                if self._state.facts is None or not isinstance(error, OSError) or isinstance(error, ConnectionError):
                    self._note_end(None, error)
                else:
                    self._wait_for_system(error)
                continue
            self._delay_s = _FIRST_DELAY_S
            try:
                end = self._hear(child)
            except Exception as error:
                logger.exception("the messages of the engine process cannot be read")
                end = error
            finally:
                self._state.note_deaf(child)  # what comes while it is ended waits for the next process
                child.end()
            if not self._is_closing:
                self._note_end(child, end)
        while not self._is_closing:  # what is asked for now ends with an error
            self._requests.hand_out()
            self._waker.wait()
        with self._changed:
            self._state.note_close()
            left = self._ledger.all_ids()
        for request_id in left:
            message = "the engine was closed before the answer was complete"
            self._end(request_id, "error", RequestError(ErrorCode.CLOSED, message))
        self._requests.hand_out()
        self._waker.close()

    def _wait_for_system(self, error: OSError) -> None:
        """Wait before starting a process again that the system refused, for example because descriptors ran out."""
        self._state.note_no_start(error)
        logger.error("the engine process cannot be started: %s; trying again in %g s", error, self._delay_s)
        until_s = time.monotonic() + self._delay_s
        self._delay_s = min(_MAX_DELAY_S, 2 * self._delay_s)
        while not self._is_closing and (left_s := until_s - time.monotonic()) > 0:
            self._requests.hand_out()
            self._waker.wait(left_s)

    def _hear(self, child: Child) -> Exception:
        """Take the messages of a process until it has ended, hangs, or is to end. Returns why."""
        silence = self._watch()
        while True:
            self._requests.hand_out()
            if self._is_closing:
                return self._let_end(child)
            if child.link.is_broken:
                self._state.note_deaf(child)
            if self._state.deaf is child:
                return self._hear_out(child)
            if child.wait(_POLL_S, self._waker.fileno()) or (child.find_end() and child.link.wait(_LAST_WORDS_S)):
                silence.hear()
                self._state.silence = None
                error = self._take(child, child.link.receive())
                if error is not None:
                    return error
                continue
            self._waker.take()
            if self._state.child is not child and not self._origin.is_owner:
                self._refuse_waiting()
            if end := child.find_end():
                return SeesayError(f"the engine process died ({end})")
            if hung := self._find_silence(child, silence):
                return hung

    def _watch(self) -> Silence:
        """Return the judge of a process that has just been started or joined."""
        limit_s = LIMIT_S if self._step_timeout_s is None else min(LIMIT_S, self._step_timeout_s + 2 * self._beat_s)
        silence = Silence(limit_s if self._origin.is_owner else limit_s + _JOINED_S)
        silence.hear()
        return silence

    def _find_silence(self, child: Child, silence: Silence) -> HungError | None:
        """Report a process that does not beat. Returns why it is to be killed, if it is. One that still loads does not
        beat; it is at fault only when it was stopped."""
        if self._state.child is not child and (child.pid is None or not is_stopped(child.pid)):
            silence.hear()
        silent_s = silence.look()[0]
        if silent_s > silence.limit_s:
            return HungError(Fault(ENGINE, f"it has said nothing for {silent_s:.0f} s"))
        if silent_s > SUSPECT_S:
            self._state.silence = Fault(ENGINE, f"the engine process has said nothing for {silent_s:.0f} s")
        return None

    def _hear_out(self, child: Child) -> Exception:
        """Take what a process has said to which nothing can be sent any more. Returns why it ended, or must end."""
        until_s = time.monotonic() + _LAST_WORDS_S
        while child.link.wait(_LAST_WORDS_S) and (child.find_end() or time.monotonic() < until_s):
            error = self._take(child, child.link.receive())
            if error is not None:
                return error
        if end := child.find_end():
            return SeesayError(f"the engine process died ({end})")
        return HungError(Fault(ENGINE, "it takes no messages"))

    def _limit_s(self) -> float:
        return hang_limit_s(self._step_timeout_s, self.facts.device)

    def _take(self, child: Child, message: kinds.ToFrontend) -> Exception | None:
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
                self._commands.take(message)
            case kinds.StatusChanged(status):
                self._state.status = status
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
            self._state.note_start(child, facts, status)
            waiting = self._ledger.waiting()
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
        if (listener := self._requests.listener) is not None:
            for item_hash in news.encoded:
                listener.on_encoding(item_hash)
        if news.stats is not None:
            if news.stats.total_step_tokens:  # also those of other frontends
                self._state.note_tokens()
            self._stats = news.stats

    def _let_end(self, child: Child) -> Exception:
        """Ask a process to end, and hear it out for a moment. One that is still loading is killed."""
        if self._state.child is child:
            self._tell(kinds.Stop())
            deadline_s = time.monotonic() + CLOSE_S
            while time.monotonic() < deadline_s:
                if child.wait(_POLL_S) or (child.find_end() and child.link.wait(_LAST_WORDS_S)):
                    self._take(child, child.link.receive())
                elif child.find_end():
                    break
        return SeesayError("the engine was closed")

    def _note_end(self, child: Child | None, error: Exception) -> None:
        """A process has ended: end its requests with an error, and the waiting ones if no process is started again."""
        with self._changed:
            is_first = self._state.facts is None
            reason = self._state.note_end(error)
            self._ledger.encoded.clear()
            self._stats = EngineStats()
            lost = [] if child is None else self._ledger.end_receiver(child)
            if not is_first and self._state.failure is not None:
                lost = self._ledger.all_ids()
        if not is_first:
            logger.error("%s", reason)
        for request_id in lost:
            self._end(request_id, "error", make_lost_error(reason))


def _choose_beat_s(step_timeout_s: float | None) -> float:
    return BEAT_S if step_timeout_s is None else min(BEAT_S, step_timeout_s / 4)

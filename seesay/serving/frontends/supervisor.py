"""The process of `--frontends N`: it starts the engine process and N frontend processes, and keeps what frontends
share.

All frontends accept connections on the same sockets, so a frontend that dies loses only connections that it had
accepted; it is started again. The children end with this process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import msgspec
import zmq

from seesay.engine.process.failures import restore_failure
from seesay.engine.process.kinds import Do, Hello, StartFailed
from seesay.engine.process.launch import ChildProcess
from seesay.engine.process.link import LinkClosedError
from seesay.engine.process.listener import open_listener
from seesay.engine.process.remote.keeper import CLOSE_S
from seesay.engine.process.remote_core import ProcessCore
from seesay.engine.process.waker import Waker
from seesay.errors import CheckpointError, SeesayError
from seesay.grammars.verdicts import make_shared_folder
from seesay.serving.errors import ApiError, bad_request
from seesay.serving.frontends import state_messages as messages
from seesay.serving.frontends.connection_counts import ConnectionCounts
from seesay.serving.frontends.state_server import StateServer
from seesay.serving.traffic.draining import log_first_signal
from seesay.system.liveness import SUSPECT_S, Silence

logger = logging.getLogger("seesay")

Child = ChildProcess[messages.ToFrontend, messages.ToSupervisor]

_MODULE = "seesay.serving.frontends.process"
_POLL_S = 0.5
_LAST_WORDS_S = 0.2
_FIRST_DELAY_S, _MAX_DELAY_S = 0.2, 10.0
"""A frontend that ended before it listened is started again after a while, which doubles each time."""
_END_S = CLOSE_S + 10.0
"""A frontend that has drained ends within this time, or is killed."""


@dataclass(slots=True)
class _Slot:
    """One of the frontends: its process, or when to start the next one."""

    index: int
    child: Child | None = None
    is_listening: bool = False
    is_silent: bool = False  # its event loop has not run for `SUSPECT_S`
    delay_s: float = 0.0  # before the next start
    start_at_s: float = 0.0  # by `time.monotonic`


class Supervisor:
    """Runs the processes of a server. Call `run` in the main thread, which takes signals."""

    def __init__(
        self,
        start: messages.Start,
        sockets: Sequence[socket.socket],
        *,
        max_responses: int,
        drain_timeout_s: float,
        hang_limit_s: float,
        on_ready: Callable[[str], None],
    ) -> None:
        """`start`: the start message of each frontend, without its index and the engine's address. `hang_limit_s`: a
        frontend whose event loop has not run for so long is killed. `on_ready` is called with the name of the device
        once all frontends listen."""
        self._start = start
        self._sockets = list(sockets)
        self._drain_timeout_s = drain_timeout_s
        self._on_ready: Callable[[str], None] | None = on_ready
        self._slots = [_Slot(index) for index in range(start.num_frontends)]
        self._counts, self._counts_memory = ConnectionCounts.make(start.num_frontends)
        self._shared_state = StateServer(
            start.num_frontends, max_responses, self._send, count_engine_restarts=self._count_engine_restarts
        )
        self._silence = Silence(hang_limit_s)
        self._core: ProcessCore | None = None
        self._failure: Exception | None = None  # why a frontend could not start, while all were to start
        self._kill_at_s = float("inf")  # when frontends that drain are killed
        self._signals: list[int] = []  # that came and were not handled yet
        self._waker = Waker()

    def run(
        self, folder: Path, engine: Mapping[str, object], vision: Mapping[str, object], step_timeout_s: float | None
    ) -> None:
        """Serve until SIGTERM or SIGINT, then drain and return. A second SIGINT skips the drain.

        The engine process loads `folder` with these configurations. Raises what it or a frontend raised at its start,
        and `KeyboardInterrupt` for a SIGINT before all frontends listen.
        """
        listener, address = open_listener()
        try:
            for slot in self._slots:
                self._open(slot)  # they import while the model is loaded
            self._core = ProcessCore.load(folder, engine, vision, step_timeout_s=step_timeout_s, listener=listener)
            self._start = msgspec.structs.replace(self._start, engine_address=address)
            with make_shared_folder(address), self._handled_signals():
                while self._step(listener):
                    pass
        finally:
            for slot in self._slots:
                if slot.child is not None:
                    slot.child.end()
            if self._core is not None:
                self._core.close()
            listener.close()
            self._waker.close()
            self._counts.close()
            os.close(self._counts_memory)

    @property
    def _is_draining(self) -> bool:
        return self._kill_at_s != float("inf")

    def _step(self, listener: socket.socket) -> bool:
        """Wait for something to happen, and handle it. Returns whether the server goes on."""
        self._handle_signals()
        assert self._core is not None
        if self._core.is_given_up:  # frontends that connect now learn that there is no engine
            listener.close()
        self._start_and_kill(time.monotonic())
        if self._is_draining and all(slot.child is None for slot in self._slots):
            return False
        self._wait()
        self._shared_state.end_late_rounds()
        for slot in self._slots:
            if slot.child is not None:
                self._hear(slot, slot.child)
        self._end_hung()
        if self._failure is not None:
            raise self._failure
        return True

    def _start_and_kill(self, now_s: float) -> None:
        """Start the frontends whose time has come, and kill those that have not ended in time."""
        for slot in self._slots:
            if slot.child is None and not self._is_draining and slot.start_at_s <= now_s:
                self._try_open(slot)
            elif slot.child is not None and now_s >= self._kill_at_s:
                logger.error("frontend process %d has not ended in time, and is killed", slot.index)
                self._close(slot)

    def _wait(self) -> None:
        poller = zmq.Poller()
        poller.register(self._waker.fileno(), zmq.POLLIN)
        for slot in self._slots:
            if slot.child is not None:
                slot.child.register(poller)
        due_s = min(
            self._shared_state.next_deadline_s,
            self._kill_at_s,
            *(slot.start_at_s for slot in self._slots if slot.child is None),
            time.monotonic() + _POLL_S,
        )
        poller.poll(max(0, 1 + int(1000 * (due_s - time.monotonic()))))
        self._waker.take()

    # --- frontends ----------------------------------------------------------------------------------------------------

    def _open(self, slot: _Slot) -> None:
        shared = [*(sock.fileno() for sock in self._sockets), self._counts_memory]
        slot.child = ChildProcess(_MODULE, receives=messages.ToSupervisor, descriptors=shared)

    def _try_open(self, slot: _Slot) -> None:
        """Start a frontend again, or leave that for later when the system starts no process."""
        try:
            self._open(slot)
        except OSError as error:
            self._delay_start(slot)
            logger.error("frontend process %d cannot be started now: %s", slot.index, error)

    def _hear(self, slot: _Slot, child: Child) -> None:
        """Take the messages of a frontend that are there, and note its end."""
        end = child.find_end()
        try:
            while child.link.has_message() or (end is not None and child.link.wait(_LAST_WORDS_S)):
                self._take(slot, child, child.link.receive())
        except LinkClosedError as error:
            end = end or str(error)
        except Exception:
            logger.exception("frontend process %d cannot be understood, and is killed", slot.index)
            end = "killed"
        if end is not None:
            self._close(slot)
            self._note_end(slot, end)

    def _end_hung(self) -> None:
        """Report frontends whose event loops do not run, and kill them in the end. Those that drain have a deadline."""
        silences = {} if self._is_draining else dict(self._silence.look())
        for index, silent_s in silences.items():
            slot = self._slots[index]
            if slot.is_silent != (silent_s > SUSPECT_S):
                slot.is_silent = not slot.is_silent
                self._shared_state.note_silence(index, is_silent=slot.is_silent)
                self._tell_num_up()
            if silent_s > self._silence.limit_s:
                self._close(slot)
                self._note_end(slot, f"killed, its event loop has not run for {silent_s:.0f} s")

    def _take(self, slot: _Slot, child: Child, message: messages.ToSupervisor) -> None:
        match message:
            case Hello():
                child.link.send(msgspec.structs.replace(self._start, index=slot.index))
                self._shared_state.join(slot.index)
            case StartFailed():
                self._note_failed_start(slot, restore_failure(message))
            case messages.Listening():
                self._note_listening(slot, message)
            case messages.Beat():
                self._silence.hear(slot.index)
            case messages.ReadStatus(number):
                assert self._core is not None
                child.link.send(messages.Status(number, self._core.status))
            case Do():
                threading.Thread(target=self._do, args=(child, message), name="seesay-command", daemon=True).start()
            case _:
                self._shared_state.take(slot.index, message)

    def _note_failed_start(self, slot: _Slot, error: Exception) -> None:
        """End the server if it was not ready yet, else log the error: the frontend is started again."""
        if self._on_ready is not None:
            self._failure = self._failure or error
        else:
            logger.error("frontend process %d could not start: %s", slot.index, error)

    def _note_listening(self, slot: _Slot, message: messages.Listening) -> None:
        """Count a frontend that listens. When all do for the first time, the server is ready."""
        slot.is_listening, slot.delay_s = True, 0.0
        self._silence.hear(slot.index)
        self._shared_state.take(slot.index, message)
        self._tell_num_up()
        if self._on_ready is not None and all(slot.is_listening for slot in self._slots):
            assert self._core is not None
            self._on_ready(self._core.facts.device)
            self._on_ready = None

    def _do(self, child: Child, message: Do) -> None:
        """Have the engine do what a frontend asks for, which may take as long as loading it."""
        assert self._core is not None
        answer: messages.ToFrontend
        try:
            self._core.run_command(message.restore())
            answer = messages.Status(message.number, self._core.status)
        except CheckpointError as error:
            answer = messages.Refused.of(message.number, bad_request(str(error)))
        except Exception as error:
            answer = messages.Refused.of(message.number, ApiError.from_error(error))
        with contextlib.suppress(LinkClosedError):  # the frontend has ended: the next one asked for nothing
            child.link.send(answer)

    def _count_engine_restarts(self) -> int:
        return 0 if self._core is None else self._core.stats().total_engine_restarts

    def _send(self, index: int, message: messages.ToFrontend) -> None:
        child = self._slots[index].child
        if child is not None:
            with contextlib.suppress(LinkClosedError):  # its end is found out
                child.link.send(message)

    def _close(self, slot: _Slot) -> None:
        assert slot.child is not None
        slot.child.end()
        slot.child, slot.is_listening, slot.is_silent = None, False, False
        self._silence.forget(slot.index)
        self._counts.leave(slot.index)
        self._shared_state.leave(slot.index)
        self._tell_num_up()

    def _tell_num_up(self) -> None:
        listening = [slot.index for slot in self._slots if slot.is_listening]
        num_up = sum(not self._slots[index].is_silent for index in listening)
        for index in listening:
            self._send(index, messages.FrontsUp(num_up))

    def _note_end(self, slot: _Slot, end: str) -> None:
        """A frontend has ended: another one is started, at once if it had served."""
        if self._is_draining:
            return
        if self._on_ready is not None:
            self._failure = self._failure or SeesayError(
                f"frontend process {slot.index} ended ({end}) before the server was ready"
            )
            return
        self._delay_start(slot)
        logger.error("frontend process %d died (%s) and is started again; its requests are lost", slot.index, end)

    def _delay_start(self, slot: _Slot) -> None:
        slot.start_at_s = time.monotonic() + slot.delay_s
        slot.delay_s = min(_MAX_DELAY_S, 2 * slot.delay_s or _FIRST_DELAY_S)

    # --- signals ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _handled_signals(self) -> Iterator[None]:
        """Note SIGINT and SIGTERM, which also end a wait."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a server with several frontends runs in the main thread, which takes signals")
        before = {number: signal.signal(number, self._note_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        wakeup = signal.set_wakeup_fd(self._waker.signal_descriptor, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._signals.append(number)

    def _handle_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if not self._is_draining:
                if number == signal.SIGINT and self._on_ready is not None:
                    raise KeyboardInterrupt  # as in a server of one process, while the model is loaded
                log_first_signal(number, self._drain_timeout_s, has_running=True)
                self._drain()
            elif number == signal.SIGINT:
                self._signal_frontends(signal.SIGINT)  # they drain already: this ends them

    def _drain(self) -> None:
        self._kill_at_s = time.monotonic() + self._drain_timeout_s + _END_S
        for sock in self._sockets:
            sock.close()  # no process accepts a connection once the last frontend has ended
        self._signal_frontends(signal.SIGTERM)

    def _signal_frontends(self, number: int) -> None:
        for slot in self._slots:
            if slot.child is not None:
                slot.child.signal(number)

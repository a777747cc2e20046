"""The process of `--frontends N`: it starts the engine process and N frontend processes, and keeps what frontends
share.

All frontends accept connections on the same sockets, so a frontend that dies loses only connections that it had
accepted; it is started again. The children end with this process.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import zmq

from seesay.engine.process.failures import restore_failure
from seesay.engine.process.kinds import Do, Hello, StartFailed
from seesay.engine.process.link import LinkClosedError
from seesay.engine.process.listener import open_listener
from seesay.engine.process.remote.keeper import CLOSE_S
from seesay.engine.process.remote_core import ProcessCore
from seesay.engine.process.waker import Waker
from seesay.errors import CheckpointError, SeesayError
from seesay.grammars.verdicts import make_shared_folder
from seesay.serving.errors import ApiError, bad_request
from seesay.serving.frontends import state_messages as messages
from seesay.serving.frontends.frontend_processes import Child, FrontendProcesses, Slot
from seesay.serving.frontends.signals import SignalInbox
from seesay.serving.frontends.state_server import StateServer
from seesay.serving.traffic.draining import log_first_signal
from seesay.system.liveness import SUSPECT_S, Silence

logger = logging.getLogger("seesay")

_POLL_S = 0.5
_LAST_WORDS_S = 0.2
_END_S = CLOSE_S + 10.0
"""A frontend that has drained ends within this time, or is killed."""


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
        self._drain_timeout_s = drain_timeout_s
        self._on_ready: Callable[[str], None] | None = on_ready
        self._processes = FrontendProcesses(start, sockets)
        self._slots = self._processes.slots
        self._shared_state = StateServer(
            start.num_frontends,
            max_responses,
            self._processes.send,
            count_engine_restarts=lambda: 0 if self._core is None else self._core.stats().total_engine_restarts,
        )
        self._silence = Silence(hang_limit_s)
        self._core: ProcessCore | None = None
        self._failure: Exception | None = None  # why a frontend could not start, while all were to start
        self._is_draining = False
        self._kill_at_s = float("inf")  # when frontends that drain are killed
        self._waker = Waker()
        self._signals = SignalInbox(self._waker)

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
                self._processes.open(slot)  # they import while the model is loaded
            self._core = ProcessCore.load(folder, engine, vision, step_timeout_s=step_timeout_s, listener=listener)
            self._processes.start = msgspec.structs.replace(self._processes.start, engine_address=address)
            with make_shared_folder(address), self._signals.collecting():
                while self._step(listener):
                    pass
        finally:
            self._processes.close()
            if self._core is not None:
                self._core.close()
            listener.close()
            self._waker.close()

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
                self._processes.try_open(slot)
            elif slot.child is not None and now_s >= self._kill_at_s:
                logger.error("frontend process %d has not ended in time, and is killed", slot.index)
                self._end(slot, "killed")

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

    def _hear(self, slot: Slot, child: Child) -> None:
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
            self._end(slot, end)

    def _end_hung(self) -> None:
        """Report frontends whose event loops do not run, and kill them in the end. Those that drain have a deadline."""
        silences = {} if self._is_draining else dict(self._silence.look())
        for index, silent_s in silences.items():
            slot = self._slots[index]
            if slot.is_silent != (silent_s > SUSPECT_S):
                slot.is_silent = not slot.is_silent
                self._shared_state.note_silence(index, is_silent=slot.is_silent)
                self._processes.tell_num_up()
            if silent_s > self._silence.limit_s:
                self._end(slot, f"killed, its event loop has not run for {silent_s:.0f} s")

    def _take(self, slot: Slot, child: Child, message: messages.ToSupervisor) -> None:
        assert self._core is not None
        match message:
            case Hello():
                child.link.send(msgspec.structs.replace(self._processes.start, index=slot.index))
                self._shared_state.join(slot.index)
            case StartFailed():
                self._note_failed_start(slot, restore_failure(message))
            case messages.Listening():
                self._note_listening(slot, message)
            case messages.Beat():
                self._silence.hear(slot.index)
            case messages.ReadStatus(number):
                child.link.send(messages.Status(number, self._core.status))
            case Do():
                arguments = (self._core, child, message)
                threading.Thread(target=_run_command, args=arguments, name="seesay-command", daemon=True).start()
            case _:
                self._shared_state.take(slot.index, message)

    def _note_failed_start(self, slot: Slot, error: Exception) -> None:
        """End the server if it was not ready yet, else log the error: the frontend is started again."""
        if self._on_ready is not None:
            self._failure = self._failure or error
        else:
            logger.error("frontend process %d could not start: %s", slot.index, error)

    def _note_listening(self, slot: Slot, message: messages.Listening) -> None:
        """Count a frontend that listens. When all do for the first time, the server is ready."""
        slot.is_listening, slot.delay_s = True, 0.0
        self._silence.hear(slot.index)
        self._shared_state.take(slot.index, message)
        self._processes.tell_num_up()
        if self._on_ready is not None and all(slot.is_listening for slot in self._slots):
            assert self._core is not None
            self._on_ready(self._core.facts.device)
            self._on_ready = None

    def _end(self, slot: Slot, why: str) -> None:
        """End a frontend. Another one is started, at once if it had served."""
        self._processes.end(slot)
        self._silence.forget(slot.index)
        self._shared_state.leave(slot.index)
        self._processes.tell_num_up()
        if self._is_draining:
            return
        if self._on_ready is not None:
            self._failure = self._failure or SeesayError(
                f"frontend process {slot.index} ended ({why}) before the server was ready"
            )
            return
        slot.delay_start()
        logger.error("frontend process %d died (%s) and is started again; its requests are lost", slot.index, why)

    def _handle_signals(self) -> None:
        while (number := self._signals.take()) is not None:
            if not self._is_draining:
                if number == signal.SIGINT and self._on_ready is not None:
                    raise KeyboardInterrupt  # as in a server of one process, while the model is loaded
                log_first_signal(number, self._drain_timeout_s, has_running=True)
                self._is_draining = True
                self._kill_at_s = time.monotonic() + self._drain_timeout_s + _END_S
                self._processes.close_sockets()
                self._processes.signal(signal.SIGTERM)
            elif number == signal.SIGINT:
                self._processes.signal(signal.SIGINT)  # they drain already: this ends them


def _run_command(core: ProcessCore, child: Child, message: Do) -> None:
    """Have the engine do what a frontend asks for, which may take as long as loading it."""
    answer: messages.ToFrontend
    try:
        core.run_command(message.restore())
        answer = messages.Status(message.number, core.status)
    except CheckpointError as error:
        answer = messages.Refused.of(message.number, bad_request(str(error)))
    except Exception as error:
        answer = messages.Refused.of(message.number, ApiError.from_error(error))
    with contextlib.suppress(LinkClosedError):  # the frontend has ended: the next one asked for nothing
        child.link.send(answer)

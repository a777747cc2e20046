"""`ProcessCore`: the core in a process of its own. One thread starts that process, reads its messages, and restarts
it."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seesay.engine.commands import Command, ModelStatus
from seesay.engine.engine_core import CoreListener
from seesay.engine.process import kinds
from seesay.engine.process.launch import END_S
from seesay.engine.process.origin import JoinedProcess, MakeOrigin, Origin, OwnProcess
from seesay.engine.process.remote.command_sender import CommandSender
from seesay.engine.process.remote.keeper import CLOSE_S, POLL_S, ProcessKeeper
from seesay.engine.process.remote.message_taker import MessageTaker
from seesay.engine.process.remote.request_sender import RequestSender
from seesay.engine.process.remote.silence_watch import choose_beat_s
from seesay.engine.process.remote.state import ProcessState
from seesay.engine.process.waker import Waker
from seesay.engine.token_messages import CoreFacts, Features, TokenRequest
from seesay.engine.watchdog import Fault
from seesay.errors import ErrorCode, RequestError
from seesay.llm.plans.sampling_params import NamedProcessor
from seesay.values import EngineStats, FinishReason


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
        self._origin = origin
        self._state = ProcessState(origin)
        self._changed = self._state.changed  # also guards the ledger
        self._waker = Waker()
        self._sender = RequestSender(self._state, self._waker)
        self._ledger = self._sender.requests.ledger
        self._commands = CommandSender(self._state, origin, self._waker)
        self._process_id = os.getpid()
        self._taker = MessageTaker(self._state, origin, self._sender, self._commands, step_timeout_s=step_timeout_s)
        self._keeper = ProcessKeeper(
            self._state, origin, self._waker, self._sender, self._taker, step_timeout_s=step_timeout_s
        )

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
        beat_s = choose_beat_s(step_timeout_s)
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
        self._sender.requests.listener = listener

    def submit(self, requests: Sequence[TokenRequest]) -> None:
        """Answer requests. They wait while no process takes them."""
        for request in requests:
            with self._changed:
                entry = self._ledger.add(request)
                error = self._find_refusal(request)
            if error is None:
                self._sender.send(entry)
            else:
                self._sender.end(request.request_id, "error", error)

    def finish(self, request_id: int, reason: FinishReason) -> None:
        """End a request whose text is complete."""
        self._sender.tell(kinds.Finish(request_id, reason))

    def abort(self, request_ids: Iterable[int]) -> None:
        """Abort requests."""
        self._sender.abort(request_ids)

    def end_group(self, group_id: int) -> None:
        """Keep nothing any more for requests of a group that are still to come."""
        self._sender.tell(kinds.EndGroup(group_id))

    def expect_media(self, request_ids: Iterable[int]) -> None:
        """Let the encoder wait a moment for the media of these requests."""
        if ids := tuple(request_ids):
            self._sender.tell(kinds.ExpectMedia(ids))

    def forget_media(self, request_ids: Iterable[int]) -> None:
        """Expect no media of these requests any more."""
        if ids := tuple(request_ids):
            self._sender.tell(kinds.ForgetMedia(ids))

    def is_encoded(self, item_hash: bytes) -> bool:
        """Whether this embedding is there or being made, as far as the process has told, or was asked for."""
        return item_hash in self._ledger.embeddings

    def give_features(self, request_id: int, item_index: int, features: Features | RequestError) -> None:
        """Answer `CoreListener.on_features_wanted`."""
        self._sender.give_features(request_id, item_index, features)

    def run_command(self, command: Command) -> None:
        """Have the process do it, and wait until it is done. A process that is being started is waited for."""
        self._commands.run(command)

    def stats(self) -> EngineStats:
        """The counts that came last. They begin anew with each process, but for the number of restarts, which the owner
        of the process has."""
        num_restarts = self._state.num_restarts if self._origin.is_owner else 0
        return EngineStats.merge(self._taker.stats, EngineStats(total_engine_restarts=num_restarts))

    def stop(self) -> None:
        """End all requests with an error, and the process. Waits for nothing."""
        self._keeper.is_closing = True
        self._waker.wake()

    def close(self) -> None:
        """`stop`, and wait until that is done. A process that does not end is killed."""
        if self._process_id == os.getpid():
            self.stop()
            if threading.current_thread() is not self._keeper.thread:
                self._keeper.thread.join(CLOSE_S + END_S + POLL_S)

    def _find_refusal(self, request: TokenRequest) -> RequestError | None:
        """Why a request is not computed."""
        if not all(isinstance(each, NamedProcessor) for each in request.params.logits_processors):
            return RequestError(
                ErrorCode.INVALID_REQUEST,
                "logits_processors: functions of this process cannot be called by the engine's: give them by name, as "
                "'package.module:function', or load the model with EngineConfig(engine_process=False)",
                "logits_processors",
            )
        if self._keeper.is_closing:
            return RequestError(ErrorCode.CLOSED, "the engine is closed")
        return self._state.find_refusal()

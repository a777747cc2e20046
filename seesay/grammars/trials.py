"""Tries grammars before requests are admitted: whether they can be honoured and compiled within limits.

Each is compiled once, by a process with limits (`trial_child.py`) that starts with the first grammar; what came out is
remembered. A trial that nobody waits for any more is ended, and nothing is remembered of it. Thread-safe.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import logging
import re
import select
import subprocess
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import IO, TYPE_CHECKING

from seesay.config.grammar import Grammar
from seesay.errors import ErrorCode, MissingExtraError, RequestError
from seesay.system.cancellation import Cancellation, make_aborted_error
from seesay.system.liveness import HELPER_LIMIT_S, STOPPED_LIMIT_S, Silence, is_stopped

if TYPE_CHECKING:
    from seesay.grammars.verdicts import SharedVerdicts

logger = logging.getLogger("seesay")

MAX_KEPT_BYTES = 32 << 20
"""Most bytes of the programs that are remembered."""
_ENTRY_BYTES = 1000
START_S = 90.0
"""A process that has not started after so long hangs."""
_END_S = 5.0
_PLACE = re.compile(r"response_format\S*(?=: schema at )|response_format\.format\b")
_LOST = "the process that compiles grammars has ended: send the request again"


_Answer = tuple[str, str, Sequence[str], bool]


class GrammarTrials:
    """`make_tokens` returns the bytes of each token (`load_token_table`). `command` starts the process, with its
    environment. It is replaced when it is silent for `hang_limit_s` while it is asked, and what it was asked is asked
    once more. shared: of other processes that serve the same model."""

    def __init__(
        self,
        make_tokens: Callable[[], Sequence[bytes]],
        command: tuple[Sequence[str], Mapping[str, str]],
        *,
        hang_limit_s: float = HELPER_LIMIT_S,
        shared: SharedVerdicts | None = None,
    ) -> None:
        self._make_tokens = make_tokens
        self._command = command
        self._hang_limit_s = hang_limit_s
        self._shared = shared
        self._lock = threading.Lock()
        self._start_lock = threading.Lock()
        self._known: OrderedDict[bytes, _Trial] = OrderedDict()
        self._num_bytes = 0
        self._child: _Child | None = None
        self._is_closed = False

    def check(self, grammar: Grammar, cancellation: Cancellation | None = None) -> Grammar:
        """Return the program that `grammar` is compiled from. Waits for its trial, unless `cancellation` says that the
        caller has left. Raises `RequestError` that says what is wrong with it, or `MissingExtraError`."""
        if importlib.util.find_spec("llguidance") is None:
            raise MissingExtraError("response_format", package="llguidance", extra="grammar")
        if cancellation is not None:
            cancellation.check()
        key = _key_of(grammar)
        with self._lock:
            trial = self._known.get(key)
            is_new = trial is None or not trial.try_join()
            if trial is None or is_new:
                self._num_bytes -= 0 if trial is None else trial.num_bytes
                trial = self._known[key] = _Trial()
            self._known.move_to_end(key)
        program, leave = trial.wait(cancellation)
        try:
            if is_new:
                self._run(key, grammar, trial)
            return program.result()
        finally:
            leave()

    def join(self, grammar: Grammar, cancellation: Cancellation | None = None) -> Future[Grammar] | None:
        """Return what the program of a grammar that was tried before, or is being tried, is or will be set in, unless
        `cancellation` says that the caller has left; None for another grammar."""
        with self._lock:
            trial = self._known.get(_key_of(grammar))
            if trial is None or not trial.try_join():
                return None
        return trial.wait(cancellation)[0]

    def is_known(self, grammar: Grammar) -> bool:
        """Whether a grammar was tried before."""
        with self._lock:
            trial = self._known.get(_key_of(grammar))
        return trial is not None and trial.program.done()

    def _run(self, key: bytes, grammar: Grammar, trial: _Trial) -> None:
        try:
            program = self._try(key, grammar, trial.waiting)
        except BaseException as error:
            is_final = isinstance(error, RequestError) and error.code is ErrorCode.INVALID_REQUEST
            self._remember(key, trial, 0, is_kept=is_final)
            trial.program.set_exception(error)
        else:
            self._remember(key, trial, len(program.source), is_kept=True)
            trial.program.set_result(program)

    def _try(self, key: bytes, grammar: Grammar, waiting: Cancellation) -> Grammar:
        verdict = None if self._shared is None else self._shared.find(key)
        if verdict is None:
            try:
                verdict = self._find_child().ask(grammar, waiting)
            except _HungError:
                verdict = self._find_child().ask(grammar, waiting)
            if self._shared is not None:
                self._shared.keep(key, verdict)
        error, source, left_out, is_slow = verdict
        if error:
            named = _PLACE.match(error)
            raise RequestError(ErrorCode.INVALID_REQUEST, error, named[0] if named else "response_format")
        return Grammar(kind="lark", source=source, left_out=tuple(left_out), is_slow=is_slow)

    def _remember(self, key: bytes, trial: _Trial, num_bytes: int, *, is_kept: bool) -> None:
        with self._lock:
            if self._known.get(key) is not trial:  # nobody waited, and then another began
                return
            if not is_kept:
                del self._known[key]
                return
            trial.num_bytes = num_bytes + _ENTRY_BYTES
            self._num_bytes += trial.num_bytes
            while self._num_bytes > MAX_KEPT_BYTES:
                oldest = next(known_key for known_key, known in self._known.items() if known.num_bytes)
                self._num_bytes -= self._known.pop(oldest).num_bytes

    def _find_child(self) -> _Child:
        with self._start_lock:
            if self._is_closed:
                raise RequestError(ErrorCode.CLOSED, "the engine is closed")
            if self._child is None or self._child.has_ended:
                self._child = _Child(self._command, self._make_tokens(), self._hang_limit_s)
            return self._child

    def close(self) -> None:
        """End the process. Trials that run raise."""
        self._is_closed = True
        child = self._child
        if child is not None:
            child.end()


class _Trial:
    """A grammar that is tried, or was: who waits for its program. num_bytes: those that are remembered of it."""

    def __init__(self) -> None:
        self.program: Future[Grammar] = Future()
        self.waiting = Cancellation()
        self.num_bytes = 0

    def try_join(self) -> bool:
        """One more waits for the program. Returns False where the trial is being ended, as nobody did."""
        return self.program.done() or self.waiting.try_join()

    def wait(self, cancellation: Cancellation | None) -> tuple[Future[Grammar], Callable[[], None]]:
        """Return the program for one of those who wait, and how this one leaves, if not by `cancellation`."""
        own: Future[Grammar] = Future()

        def leave() -> None:
            with suppress(InvalidStateError):  # it is there already
                own.set_exception(make_aborted_error())
                self.waiting.leave()

        self.program.add_done_callback(partial(_copy, own))
        if cancellation is not None:
            take_back = cancellation.on_leave(leave)
            own.add_done_callback(lambda _: take_back())
        return own, leave


def _copy(own: Future[Grammar], done: Future[Grammar]) -> None:
    with suppress(InvalidStateError):  # it has left
        error = done.exception()
        if error is None:
            own.set_result(done.result())
        else:
            own.set_exception(error)


class _Child:
    """One process, and the questions that it has not answered."""

    def __init__(
        self, command: tuple[Sequence[str], Mapping[str, str]], tokens: Sequence[bytes], hang_limit_s: float
    ) -> None:
        from seesay.grammars.frames import write_frame

        arguments, environment = command
        try:
            self._process = subprocess.Popen(
                list(arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # Ctrl-C in the terminal is for the parent, whose end ends the process. It stays in our session:
                # Linux shares the processors among sessions, and a niceness counts within one alone.
                process_group=0,
                env={**environment, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            )
        except (OSError, ValueError) as error:
            raise RequestError(
                ErrorCode.INTERNAL, f"the process that compiles grammars cannot start: {error}"
            ) from error
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[_Answer]] = {0: Future()}  # it says 0 when it has started
        self._lock = threading.Lock()
        self._hang_limit_s = hang_limit_s
        self._silence = Silence(START_S)
        self._silence.hear()
        self._has_hung = False
        self.has_ended = False
        self._thread = threading.Thread(target=self._listen, name="seesay-grammar-trials", daemon=True)
        self._thread.start()
        with suppress(OSError, ValueError):  # it may have ended, and the pipe be closed
            assert self._process.stdin is not None
            write_frame(self._process.stdin, list(tokens))

    def ask(self, grammar: Grammar, waiting: Cancellation) -> _Answer:
        """Return what is wrong with a grammar, or '', its program, what that does not hold, whether it takes long.
        Raises `RequestError` once nobody waits."""
        from seesay.grammars.frames import write_frame

        future: Future[_Answer] = Future()
        with self._lock:
            number = next(self._numbers)
            if not self._waiting:
                self._silence.hear()
            self._waiting[number] = future
            try:
                if self.has_ended:
                    raise OSError
                assert self._process.stdin is not None
                write_frame(self._process.stdin, (number, grammar.kind, _encodable(grammar.source), grammar.is_open))
            except OSError:
                self._waiting.pop(number, None)
                raise (_HungError() if self._has_hung else _make_lost_error()) from None
        try:
            with waiting.calling(future.cancel):
                return future.result()
        except CancelledError:
            self._withdraw(number)
            raise make_aborted_error() from None

    def _withdraw(self, number: int) -> None:
        """Let the process end a trial that it was asked for."""
        from seesay.grammars.frames import write_frame

        with self._lock:
            if number in self._waiting:
                assert self._process.stdin is not None
                with suppress(OSError, ValueError):  # it has ended
                    write_frame(self._process.stdin, (number,))
                self._waiting.pop(number, None)

    def _listen(self) -> None:
        from seesay.grammars.frames import read_frame

        assert self._process.stdout is not None
        answers = open(self._process.stdout.fileno(), "rb", buffering=0, closefd=False)  # noqa: SIM115
        with suppress(EOFError, OSError, ValueError):
            while self._wait_for_answer(answers):
                number, *answer = read_frame(answers)
                self._silence.hear()
                self._silence.limit_s = self._hang_limit_s
                future = self._waiting.pop(number, None)  # without the lock, which a write to a full pipe keeps
                if future is not None and future.set_running_or_notify_cancel():
                    future.set_result((answer[0], answer[1], answer[2], answer[3]))
        self.has_ended = True  # the caller retries with the next process
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        with self._lock:
            assert self._process.stdin is not None
            with suppress(OSError):  # what was not sent
                self._process.stdin.close()
            lost, self._waiting = self._waiting, {}
        for future in lost.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(_HungError() if self._has_hung else _make_lost_error())

    def _wait_for_answer(self, answers: IO[bytes]) -> bool:
        """Wait for the next answer, or the end of the process. Returns False for a process that hangs."""
        poll = select.poll()
        poll.register(answers, select.POLLIN)
        while not poll.poll(int(1000 * min(1.0, self._hang_limit_s / 4))):
            if not self._waiting:
                self._silence.hear()
            elif self._silence.look()[0] > self._find_limit_s():
                logger.error("the process that compiles grammars does not respond and is killed")
                self._has_hung = True
                return False
        return True

    def _find_limit_s(self) -> float:
        limit_s = self._silence.limit_s
        return min(limit_s, STOPPED_LIMIT_S) if is_stopped(self._process.pid) else limit_s

    def end(self) -> None:
        """End the process; what was asked raises."""
        self._process.kill()
        self._thread.join(_END_S)


class _HungError(RequestError):
    """The process was replaced because it did not respond."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.INTERNAL, _LOST)


def _make_lost_error() -> RequestError:
    return RequestError(ErrorCode.INTERNAL, _LOST)


def _key_of(grammar: Grammar) -> bytes:
    head = f"{grammar.kind} {grammar.is_open} ".encode()
    return hashlib.sha256(head + grammar.source.encode("utf-8", "surrogatepass")).digest()


def _encodable(source: str) -> str:
    """A source whose lone surrogates are written as JSON writes them: it is refused for these where it is tried."""
    return source.encode("utf-8", "backslashreplace").decode()

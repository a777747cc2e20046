"""Tries grammars before requests are admitted: whether they can be honoured and compiled within limits.

Each is compiled once, by a process with limits (`trial_child.py`) that starts with the first grammar; what came out is
remembered. Thread-safe.
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
from concurrent.futures import Future
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from seesay.config.grammar import Grammar
from seesay.errors import ErrorCode, MissingExtraError, RequestError
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
        self._known: OrderedDict[bytes, Future[Grammar]] = OrderedDict()
        self._num_bytes = 0
        self._child: _Child | None = None
        self._is_closed = False

    def check(self, grammar: Grammar) -> Grammar:
        """Return the program that `grammar` is compiled from. Waits for its trial. Raises `RequestError` that says what
        is wrong with it, or `MissingExtraError`."""
        if importlib.util.find_spec("llguidance") is None:
            raise MissingExtraError("response_format", package="llguidance", extra="grammar")
        key = _key_of(grammar)
        with self._lock:
            future = self._known.get(key)
            is_first = future is None
            if future is None:
                future = self._known[key] = Future()
            self._known.move_to_end(key)
        if not is_first:
            return future.result()
        try:
            program = self._try(key, grammar)
        except BaseException as error:
            is_final = isinstance(error, RequestError) and error.code is ErrorCode.INVALID_REQUEST
            self._remember(key, future, 0, is_kept=is_final)
            future.set_exception(error)
            raise
        self._remember(key, future, len(program.source), is_kept=True)
        future.set_result(program)
        return program

    def find(self, grammar: Grammar) -> Future[Grammar] | None:
        """Return what the program of a grammar that was tried before, or is being tried, is or will be set in."""
        with self._lock:
            return self._known.get(_key_of(grammar))

    def _try(self, key: bytes, grammar: Grammar) -> Grammar:
        verdict = None if self._shared is None else self._shared.find(key)
        if verdict is None:
            try:
                verdict = self._find_child().ask(grammar)
            except _HungError:
                verdict = self._find_child().ask(grammar)
            if self._shared is not None:
                self._shared.keep(key, verdict)
        error, source, left_out, is_slow = verdict
        if error:
            named = _PLACE.match(error)
            raise RequestError(ErrorCode.INVALID_REQUEST, error, named[0] if named else "response_format")
        return Grammar(kind="lark", source=source, left_out=tuple(left_out), is_slow=is_slow)

    def _remember(self, key: bytes, future: Future[Grammar], num_bytes: int, *, is_kept: bool) -> None:
        with self._lock:
            if not is_kept:
                if self._known.get(key) is future:
                    del self._known[key]
                return
            self._num_bytes += num_bytes + _ENTRY_BYTES
            while self._num_bytes > MAX_KEPT_BYTES:
                oldest = next((k for k, known in self._known.items() if known.done()), None)
                if oldest is None:
                    return
                known = self._known.pop(oldest)
                self._num_bytes -= _ENTRY_BYTES + (0 if known.exception() else len(known.result().source))

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

    def ask(self, grammar: Grammar) -> _Answer:
        """Return what is wrong with a grammar, or '', its program, what that does not hold, whether it takes long."""
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
        return future.result()

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
                if future is not None:
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

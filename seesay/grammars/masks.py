"""Which tokens the rules of some sequences allow next, as bit masks.

Each sequence has a rule, which follows its generated tokens: a grammar's matcher, or one around it. Masks are filled by
a few threads, in xgrammar's code, which does not hold the GIL. Compiled grammars are shared by all sequences, up to a
number of bytes.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from seesay.config.grammar import Grammar
from seesay.errors import ErrorCode, RequestError
from seesay.grammars.compile import compile_program, make_compiler
from seesay.grammars.forced_tokens import ForcedTokens
from seesay.grammars.vocabulary import Vocabulary
from seesay.system.thread_pool import ThreadPool

MAX_COMPILED_BYTES = 256 << 20
MAX_MASK_S = 1.0
"""A mask that takes longer ends its request: all other rows of the step wait for it."""
_COMPILE_THREADS = 2
_ROWS_PER_THREAD = 16
"""Fewer rows than this are not worth another thread: a mask takes 10 µs."""
_MAX_THREADS = 4


Overshoots = Mapping[bytes, Sequence[int]]
"""By the beginning of a marker that is written, the tokens that complete the marker and go on behind it."""


class CompiledGrammars:
    """Compiles programs that were tried before. Thread-safe.

    vocabulary: of the tokens, once a program is compiled; None without `encode`.
    """

    def __init__(
        self,
        make_tokens: Callable[[], Sequence[bytes]],
        *,
        encode: Callable[[str], Sequence[int]] | None = None,
        max_bytes: int = MAX_COMPILED_BYTES,
    ) -> None:
        """`make_tokens` returns the bytes of each token. `encode` returns the token ids of a text; without it, no text
        is forced (see `ForcedTokens`)."""
        self.vocabulary: Vocabulary | None = None
        self._make_tokens = make_tokens
        self._encode = encode
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._compiler_lock = threading.Lock()
        self._compiler: Any = None
        self._kept: OrderedDict[Grammar, Future[Any]] = OrderedDict()
        self._overshoots: dict[str, Future[Overshoots]] = {}  # by marker, of which a model has one
        self._num_bytes = 0
        self._threads = ThreadPool(_COMPILE_THREADS, name="seesay-grammar")

    @property
    def num_bytes(self) -> int:
        """Bytes of what is kept."""
        return self._num_bytes

    def find(self, program: Grammar) -> Future[Any]:
        """Return the compiled form of a program, or what it will be set in."""
        with self._lock:
            future = self._kept.get(program)
            if future is not None:
                self._kept.move_to_end(program)
                return future
            future = self._kept[program] = Future()
        self._threads.submit(self._compile, program, future)
        return future

    def find_overshoots(self, marker: str) -> Future[Overshoots]:
        """Return the tokens that complete a marker and go on behind it, or what they will be set in."""
        with self._lock:
            future = self._overshoots.get(marker)
            if future is not None:
                return future
            future = self._overshoots[marker] = Future()
        self._threads.submit(self._collect_overshoots, marker.encode(), future)
        return future

    def _collect_overshoots(self, end: bytes, future: Future[Overshoots]) -> None:
        try:
            tokens = [(token_id, token) for token_id, token in enumerate(self._make_tokens()) if len(token) > 1]
            found: dict[bytes, list[int]] = {}
            for size in range(len(end)):
                texts = ((token_id, end[:size] + token) for token_id, token in tokens)
                found[end[:size]] = [i for i, text in texts if 0 <= text.find(end) < len(text) - len(end)]
        except BaseException as error:
            future.set_exception(error)
            return
        future.set_result(found)

    def _compile(self, program: Grammar, future: Future[Any]) -> None:
        try:
            with self._compiler_lock:
                if self._compiler is None:
                    tokens = self._make_tokens()
                    if self._encode is not None:
                        self.vocabulary = Vocabulary(tokens, self._encode)
                    self._compiler = make_compiler(tokens, num_threads=1)
            compiled = compile_program(self._compiler, program.kind, program.source)
        except BaseException as error:
            with self._lock:
                self._kept.pop(program, None)
            future.set_exception(error)
            return
        with self._lock:
            self._num_bytes += _size_of(program, compiled)
            while self._num_bytes > self._max_bytes:
                oldest = next((key for key, kept in self._kept.items() if kept.done()), None)
                if oldest is None:
                    break
                self._num_bytes -= _size_of(oldest, self._kept.pop(oldest).result())
        future.set_result(compiled)

    def close(self) -> None:
        """End the threads when they have compiled what was asked for."""
        threading.Thread(target=self._threads.close, name="seesay-grammar-close", daemon=True).start()


def _size_of(program: Grammar, compiled: Any) -> int:
    return int(compiled.memory_size_bytes) + len(program.source)


class MaskMaker(Protocol):
    """Follows one sequence and makes the masks of its next tokens."""

    def fill(self, generated_ids: npt.NDArray[np.int64], bits: npt.NDArray[np.int32], row: int) -> bool:
        """Write the mask of the next token to a row of `bits`. Returns whether it forbids any."""
        ...

    @property
    def forced(self) -> tuple[int, ...]:
        """The tokens that come next in any case, after `fill`: its mask allows the first one alone. None where there is
        a choice."""
        ...


class Matcher:
    """The state of one sequence's grammar. Made for its generated tokens, and brought up to date with them."""

    def __init__(
        self,
        compiled: Any,
        stop_token_ids: Sequence[int],
        vocabulary: Vocabulary | None = None,
        unforced: Sequence[int] = (),
    ) -> None:
        """stop_token_ids: one of them is allowed where the answer is complete, and nowhere else. vocabulary: with which
        text that the grammar leaves no choice about is forced, unless it has one of these tokens, or of `unforced`;
        None: it is not."""
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=list(stop_token_ids))
        self._num_accepted = 0
        self._forced: ForcedTokens | None = None
        if vocabulary is not None:
            self._forced = ForcedTokens(self._matcher, vocabulary, frozenset([*stop_token_ids, *unforced]))

    def fill(self, generated_ids: npt.NDArray[np.int64], bits: npt.NDArray[np.int32], row: int) -> bool:
        """Follow the tokens that were generated, and write the mask of the next one to a row of `bits`. Returns whether
        it forbids any. Raises ValueError for a token that the grammar does not allow."""
        for token_id in generated_ids[self._num_accepted :].tolist():
            if self._matcher.is_terminated() or not self._matcher.accept_token(token_id):
                raise ValueError(f"the grammar does not allow token {token_id} after {self._num_accepted} tokens")
            self._num_accepted += 1
            if self._forced is not None:
                self._forced.follow(token_id)
        if self._matcher.is_terminated():
            return False
        return bool(self._matcher.fill_next_token_bitmask(bits, row))

    def find_forced(self) -> tuple[int, ...]:
        """Return the tokens that come next in any case, after `fill`."""
        if self._forced is None or self._matcher.is_terminated():
            return ()
        return self._forced.find()


@dataclass(slots=True)
class MaskRow:
    """A row whose mask is wanted: its rule and the generated tokens. is_masked: whether any token is forbidden."""

    rule: MaskMaker
    generated_ids: npt.NDArray[np.int64]
    is_masked: bool = False
    error: RequestError | None = None


@dataclass(slots=True)
class _Work:
    """The rows of a step that are left to be filled, for several threads."""

    rows: Sequence[MaskRow]
    bits: npt.NDArray[np.int32]
    left: deque[int] = field(default_factory=deque)
    begun_s: dict[int, float] = field(default_factory=dict)
    num_done: int = 0
    is_done: threading.Condition = field(default_factory=threading.Condition)

    def run(self) -> None:
        while True:
            with self.is_done:
                if not self.left:
                    return
                index = self.left.popleft()
                self.begun_s[index] = time.monotonic()
            row = self.rows[index]
            error: RequestError | None = None
            is_masked = False
            try:
                is_masked = row.rule.fill(row.generated_ids, self.bits, index)
            except RequestError as failure:
                error = failure
            except Exception as failure:
                error = RequestError(ErrorCode.INVALID_REQUEST, f"response_format: {failure}", "response_format")
            with self.is_done:
                if self.begun_s.pop(index, None) is None:  # given up
                    return
                row.is_masked, row.error = is_masked, error
                self.num_done += 1
                if self.num_done == len(self.rows):
                    self.is_done.notify()


class MaskThreads:
    """Fills the masks of a step. Used by one thread."""

    def __init__(self, *, max_mask_s: float = MAX_MASK_S) -> None:
        self._max_mask_s = max_mask_s
        self._threads: ThreadPool | None = None

    def fill(self, rows: Sequence[MaskRow], vocab_size: int) -> npt.NDArray[np.int32]:
        """Return bits int32 [len(rows), ceil(vocab_size / 32)], and set `is_masked` or `error` of each row."""
        bits = np.empty((len(rows), -(-vocab_size // 32)), dtype=np.int32)
        work = _Work(rows, bits, deque(range(len(rows))))
        while True:
            if self._threads is None:
                self._threads = ThreadPool(_MAX_THREADS, name="seesay-mask")
            for _ in range(min(_MAX_THREADS, -(-len(work.left) // _ROWS_PER_THREAD))):
                self._threads.submit(work.run)
            if not self._give_up_slow(work):
                return bits
            self._threads = None  # some of them hang: those end when they can

    def _give_up_slow(self, work: _Work) -> bool:
        """Wait until all rows are filled, or some take too long: these are given up. Returns whether there are any."""
        with work.is_done:
            while work.num_done < len(work.rows):
                now_s = time.monotonic()
                slow = [index for index, begun_s in work.begun_s.items() if now_s - begun_s > self._max_mask_s]
                for index in slow:
                    del work.begun_s[index]
                    work.num_done += 1
                    work.rows[index].error = RequestError(
                        ErrorCode.INVALID_REQUEST,
                        f"response_format: the grammar takes more than {self._max_mask_s:g} s for one token: make it "
                        "less ambiguous",
                        "response_format",
                    )
                if slow:
                    return True
                oldest_s = min(work.begun_s.values(), default=now_s)
                work.is_done.wait(max(0.0, oldest_s + self._max_mask_s - now_s) + 0.001)
        return False

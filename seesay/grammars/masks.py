"""Which tokens the rules of some sequences allow next, as bit masks, and the grammars that these rules follow.

Each sequence has a rule, which follows its generated tokens: a grammar's matcher, or one around it. Masks are computed
by llguidance's threads, all rows of a step at once, without the GIL. Compiled grammars are shared by all sequences, up
to a number of them.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from seesay.config.grammar import Grammar
from seesay.errors import ErrorCode, RequestError
from seesay.grammars.compile import TokenTable, compile_program
from seesay.grammars.matcher import Matcher
from seesay.system.fair_threads import FairThreads

MAX_KEPT = 256
"""Most compiled grammars that are kept: 0.1 MB each, and what their answers needed."""
MAX_SOURCE_CHARS = 16 << 20
"""Most characters of their programs together."""
_QUICK_THREADS, _SLOW_THREADS = 4, 2
"""Programs that take long to compile have threads of their own, so that those of others never wait for them."""
_MAX_THREADS = 16

_Wanted = tuple[Any, int]
"""A matcher of llguidance, and the row of the mask that it fills."""
_Token = tuple[Any, int]
"""A matcher of llguidance, and a token that it is to consume."""
Overshoots = Mapping[bytes, Sequence[int]]
"""By the beginning of a marker that is written, the tokens that complete the marker and go on behind it."""


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A program of which matchers are made. forces: see `compile_program`."""

    prototype: Any
    table: TokenTable
    forces: bool
    forget: Callable[[], None]

    def make_matcher(self, stop_token_ids: Sequence[int]) -> Matcher:
        """Return a matcher of a text that begins."""
        return Matcher(self.prototype, self.table, stop_token_ids, forces=self.forces, on_error=self.forget)


_Key = tuple[Grammar, bool]


class CompiledGrammars:
    """Compiles programs that were tried before, in turns of those who ask. Thread-safe."""

    def __init__(
        self,
        make_tokens: Callable[[], Sequence[bytes]],
        *,
        encode: Callable[[str], Sequence[int]] | None = None,
        max_kept: int = MAX_KEPT,
    ) -> None:
        """`make_tokens` returns the bytes of each token. `encode` returns the token ids of a text; without it, forced
        text is cut into the longest tokens."""
        self._make_tokens = make_tokens
        self._encode = encode
        self._max_kept = max_kept
        self._lock = threading.Lock()
        self._table_lock = threading.Lock()
        self._table: TokenTable | None = None
        self._kept: OrderedDict[_Key, Future[CompiledGrammar]] = OrderedDict()
        self._owners: dict[_Key, Hashable] = {}  # who asked for a grammar first
        self._overshoots: dict[str, Future[Overshoots]] = {}  # by marker, of which a model has one
        self._threads = FairThreads(_QUICK_THREADS, name="seesay-grammar", max_per_owner=1)
        self._slow_threads = FairThreads(_SLOW_THREADS, name="seesay-slow-grammar", max_per_owner=1)

    @property
    def num_kept(self) -> int:
        """Programs that are kept."""
        return len(self._kept)

    def find(self, program: Grammar, *, owner: Hashable = None, forces: bool = False) -> Future[CompiledGrammar]:
        """Return the compiled form of a program, or what it will be set in. owner: whose turn it takes. forces: see
        `compile_program`."""
        key = program, forces
        with self._lock:
            future = self._kept.get(key)
            if future is not None:
                self._kept.move_to_end(key)
                return future
            threads = self._slow_threads if program.is_slow else self._threads
            future = self._kept[key] = threads.submit(owner, self._compile, key)
            self._owners[key] = owner
        future.add_done_callback(lambda done: self._settle(key, done))
        return future

    def find_overshoots(self, marker: str) -> Future[Overshoots]:
        """Return the tokens that complete a marker and go on behind it, or what they will be set in."""
        with self._lock:
            future = self._overshoots.get(marker)
            if future is None:
                future = self._threads.submit(None, self._collect_overshoots, marker.encode())
                self._overshoots[marker] = future
            return future

    def _collect_overshoots(self, end: bytes) -> Overshoots:
        tokens = [(token_id, token) for token_id, token in enumerate(self._make_tokens()) if len(token) > 1]
        found: dict[bytes, list[int]] = {}
        for size in range(len(end)):
            texts = ((token_id, end[:size] + token) for token_id, token in tokens)
            found[end[:size]] = [i for i, text in texts if 0 <= text.find(end) < len(text) - len(end)]
        return found

    def _compile(self, key: _Key) -> CompiledGrammar:
        program, forces = key
        assert program.kind == "lark", program.kind
        with self._table_lock:
            if self._table is None:
                self._table = TokenTable(self._make_tokens(), self._encode)
        prototype = compile_program(self._table, program.source, forces=forces)
        return CompiledGrammar(prototype, self._table, forces, lambda: self._forget(key))

    def _settle(self, key: _Key, future: Future[CompiledGrammar]) -> None:
        """Keep what was compiled, and as many others as there is room for: those of the owner who has most go first,
        so that nobody's grammars are compiled anew because of another's."""
        if future.exception() is not None:
            self._forget(key)
            return
        with self._lock:
            num_chars = sum(len(program.source) for program, _ in self._kept)
            while len(self._kept) > self._max_kept or num_chars > MAX_SOURCE_CHARS:
                other = self._find_superfluous()
                if other is None:
                    return
                num_chars -= len(other[0].source)
                del self._kept[other], self._owners[other]

    def _find_superfluous(self) -> _Key | None:
        """Return the grammar of the owner with most that was used longest ago; None while all are being compiled."""
        done = [key for key, kept in self._kept.items() if kept.done()]
        numbers = Counter(self._owners[key] for key in done)
        return max(done, key=lambda key: numbers[self._owners[key]], default=None)

    def _forget(self, key: _Key) -> None:
        with self._lock:
            self._kept.pop(key, None)
            self._owners.pop(key, None)

    def close(self) -> None:
        """End the threads when they have compiled what was asked for."""
        for threads in (self._threads, self._slow_threads):
            threading.Thread(target=threads.close, name="seesay-grammar-close", daemon=True).start()


class MaskMaker(Protocol):
    """Follows one sequence and makes the masks of its next tokens."""

    def follow(self, generated_ids: npt.NDArray[np.int64]) -> Any:
        """Follow the generated tokens. Returns what is to fill the row (`LLMatcher`) before `finish`, or None."""
        ...

    def finish(self, words: npt.NDArray[np.int32]) -> bool:
        """Complete the mask of the next token. Returns whether it forbids any."""
        ...

    def fork(self) -> MaskMaker:
        """Return a copy that follows other tokens from here on."""
        ...

    @property
    def forced(self) -> tuple[int, ...]:
        """The tokens that come next in any case, after `finish`: its mask allows the first one alone. None where there
        is a choice."""
        ...


@dataclass(slots=True)
class MaskRow:
    """A row whose mask is wanted: its rule and the generated tokens. is_masked: whether any token is forbidden."""

    rule: MaskMaker
    generated_ids: npt.NDArray[np.int64]
    is_masked: bool = False
    error: RequestError | None = None


def _make_bits(num_rows: int, num_words: int) -> npt.NDArray[np.int32]:
    return np.empty((num_rows, num_words), np.int32)


class MaskThreads:
    """Fills the masks of a step. Used by one thread."""

    def __init__(self, make_bits: Callable[[int, int], npt.NDArray[np.int32]] = _make_bits) -> None:
        """`make_bits` returns memory for so many rows of so many words."""
        self._executor: Any = None
        self._beside: ThreadPoolExecutor | None = None
        self._newest: Future[Any] | None = None
        self._consumed: Future[Any] | None = None
        self._make_bits = make_bits

    def consume(self, tokens: Sequence[_Token]) -> None:
        """Let matchers consume a token each, all at once, in a thread. One that does not allow its token has an error
        then."""
        if tokens:
            self._newest = self._consumed = self._find_thread().submit(self._find_executor().consume_token_par, tokens)

    def start(
        self, rows: Sequence[MaskRow], vocab_size: int, *, at_once: bool = False
    ) -> Future[npt.NDArray[np.int32]]:
        """Begin to fill masks in that thread, behind what it does, or fill them `at_once`. The result is that of
        `fill`; until it is there the rows are the thread's."""
        bits = self._prepare_bits(rows, vocab_size)
        done = Future[npt.NDArray[np.int32]]()
        if at_once:
            self.wait()
            done.set_result(self._fill_all(rows, bits))
        else:
            self._newest = done = self._find_thread().submit(self._fill_all, rows, bits)
        return done

    def wait(self) -> None:
        """Wait for the thread."""
        if self._newest is not None and not self._newest.done():
            wait([self._newest])

    def settle(self) -> None:
        """Wait for the thread. Raises, once, what went wrong in the last `consume`: of its matchers nothing is known
        then."""
        self.wait()
        consumed, self._consumed = self._consumed, None
        if consumed is not None:
            consumed.result()

    def fill(self, rows: Sequence[MaskRow], vocab_size: int) -> npt.NDArray[np.int32]:
        """Return bits int32 [len(rows), ceil((vocab_size + 1) / 32)], and set `is_masked` or `error` of each row. Bits
        from `vocab_size` on have no meaning."""
        return self._fill_all(rows, self._prepare_bits(rows, vocab_size))

    def close(self) -> None:
        """End the thread that fills masks."""
        if self._beside is not None:
            self._beside.shutdown()

    def _prepare_bits(self, rows: Sequence[MaskRow], vocab_size: int) -> npt.NDArray[np.int32]:
        return self._make_bits(len(rows), -(-(vocab_size + 1) // 32))  # llguidance has a token more: the end

    def _fill_all(self, rows: Sequence[MaskRow], bits: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        self._fill(_follow(rows), bits)
        _finish(rows, bits)
        return bits

    def _fill(self, wanted: list[_Wanted], bits: npt.NDArray[np.int32]) -> None:
        if wanted:
            num_rows, num_words = bits.shape
            self._find_executor().unsafe_compute_mask_ptr(wanted, bits.ctypes.data, 4 * num_words, num_rows)

    def _find_thread(self) -> ThreadPoolExecutor:
        if self._beside is None:
            self._beside = ThreadPoolExecutor(1, "seesay-masks")
        return self._beside

    def _find_executor(self) -> Any:
        if self._executor is None:
            from llguidance import LLExecutor

            self._executor = LLExecutor(max(1, min(_MAX_THREADS, (os.cpu_count() or 2) - 1)))
        return self._executor


def _follow(rows: Sequence[MaskRow]) -> list[_Wanted]:
    """Follow the tokens of rows. Returns what is to fill their masks."""
    wanted: list[_Wanted] = []
    for index, row in enumerate(rows):
        try:
            inner = row.rule.follow(row.generated_ids)
        except Exception as error:
            row.error = _blame(error)
        else:
            if inner is not None:
                wanted.append((inner, index))
    return wanted


def _finish(rows: Sequence[MaskRow], bits: npt.NDArray[np.int32]) -> None:
    """Complete the masks of rows."""
    for row, words in zip(rows, bits, strict=True):
        if row.error is None:
            try:
                row.is_masked = row.rule.finish(words)
            except Exception as error:
                row.error = _blame(error)


def _blame(error: Exception) -> RequestError:
    """Return the error of a row whose mask cannot be made."""
    if isinstance(error, RequestError):
        return error
    return RequestError(ErrorCode.INVALID_REQUEST, f"response_format: {error}", "response_format")

"""The tokens that would complete a forbidden word, as bit masks.

Words are looked for in the bytes that tokens add to a text, so a word is found however it is cut into tokens. Each
sequence follows its generated tokens with the automaton of Aho and Corasick (1975). A token is forbidden where a word
ends in it: either the word lies inside of the token, or the text so far ends with the beginning of the word and the
token begins with the rest.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt

from seesay.system.thread_pool import ThreadPool

_MAX_KEPT_LISTS = 16
_MAX_KEPT_MASKS = 64
_MAX_MASKS_BYTES = 4 << 20


class TokenSpellings:
    """The bytes of the tokens of a vocabulary, in order of these bytes."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens
        ordered = sorted(range(len(tokens)), key=tokens.__getitem__)
        self._ids = np.array(ordered, dtype=np.int64)
        self._sorted = [tokens[token_id] for token_id in ordered]
        self.max_bytes = max(map(len, tokens), default=0)

    def find(self, beginning: bytes) -> npt.NDArray[np.int64]:
        """Return the ids of the tokens that begin with some bytes, which are not empty."""
        first = bisect_left(self._sorted, beginning)
        after = _successor(beginning)
        last = len(self._sorted) if after is None else bisect_left(self._sorted, after, lo=first)
        return self._ids[first:last]


def _successor(prefix: bytes) -> bytes | None:
    """Return the smallest bytes greater than every string with this `prefix`; None if there are none."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else None


class BadWords:
    """A list of words and the masks of the tokens that complete none of them. Used by several threads at once."""

    def __init__(self, words: Sequence[str], spellings: TokenSpellings) -> None:
        self._spellings = spellings
        self._words = sorted({word.encode(errors="surrogatepass") for word in words})
        self._build()
        tokens = spellings.tokens
        first_bytes = frozenset(self._next[0])  # most tokens have none of them
        has_word = (not first_bytes.isdisjoint(token) and self._has_word(token) for token in tokens)
        self._is_inside = np.fromiter(has_word, np.bool_, count=len(tokens))
        self._lock = threading.Lock()
        mask = _pack(~self._is_inside)
        self._max_kept = max(1, min(_MAX_KEPT_MASKS, _MAX_MASKS_BYTES // mask.nbytes))
        self._kept: OrderedDict[int, npt.NDArray[np.int32]] = OrderedDict()
        self._first_mask = mask

    def _build(self) -> None:
        """Make the automaton: by state, the next states, the state of its longest proper suffix, and a word that begins
        with its bytes with their number; and the states at which a word ends."""
        self._next: list[dict[int, int]] = [{}]
        self._suffix = [0]
        self._begun = [(b"", 0)]
        self._ends: set[int] = set()
        for word in self._words:
            state = 0
            for index, byte in enumerate(word):
                if byte not in self._next[state]:
                    self._next[state][byte] = len(self._next)
                    self._next.append({})
                    self._suffix.append(0)
                    self._begun.append((word, index + 1))
                state = self._next[state][byte]
            self._ends.add(state)
        level = list(self._next[0].values())
        while level:
            for state in level:
                for byte, after in self._next[state].items():
                    suffix = self._suffix[after] = self._step(self._suffix[state], byte)
                    if suffix in self._ends:
                        self._ends.add(after)
            level = [after for state in level for after in self._next[state].values()]

    def _step(self, state: int, byte: int) -> int:
        while state and byte not in self._next[state]:
            state = self._suffix[state]
        return self._next[state].get(byte, 0)

    def _has_word(self, text: bytes) -> bool:
        """Whether a word lies inside of a text."""
        state = 0
        for byte in text:
            state = self._step(state, byte)
            if state in self._ends:
                return True
        return False

    def follow(self, state: int, token_id: int) -> int:
        """Return the state behind a token. The state at the beginning of a text is 0."""
        for byte in self._spellings.tokens[token_id]:
            state = self._step(state, byte)
        return state

    def mask(self, state: int) -> npt.NDArray[np.int32]:
        """Return the mask of the tokens that may come next, int32 [ceil(V / 32)], which nobody writes to."""
        if state == 0:
            return self._first_mask
        with self._lock:
            if (kept := self._kept.get(state)) is not None:
                self._kept.move_to_end(state)
                return kept
        is_forbidden = self._is_inside.copy()
        for rest in self._find_rests(state):
            is_forbidden[self._spellings.find(rest)] = True
        mask = _pack(~is_forbidden)
        with self._lock:
            self._kept[state] = mask
            if len(self._kept) > self._max_kept:
                self._kept.popitem(last=False)
        return mask

    def _find_rests(self, state: int) -> Iterator[bytes]:
        """The bytes that complete a word which has begun."""
        longest = self._spellings.max_bytes
        while state:
            of_word, num_bytes = self._begun[state]
            begun = of_word[:num_bytes]
            for word in self._words[bisect_left(self._words, begun) :]:
                if not word.startswith(begun):
                    break
                if len(begun) < len(word) <= len(begun) + longest:
                    yield word[len(begun) :]
            state = self._suffix[state]


def _pack(is_allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    octets = np.packbits(is_allowed, bitorder="little")
    return np.concatenate([octets, np.zeros(-len(octets) % 4, np.uint8)]).view(np.int32)


class BadWordsMatcher:
    """The state of one sequence: what its text so far ends with."""

    def __init__(self, words: BadWords) -> None:
        self._words = words
        self._state = 0
        self._num_seen = 0

    def forbid(self, generated_ids: npt.NDArray[np.int64], bits: npt.NDArray[np.int32]) -> None:
        """Follow the tokens that were generated, and take those that complete a word out of a mask `bits`."""
        for token_id in generated_ids[self._num_seen :].tolist():
            self._state = self._words.follow(self._state, token_id)
        self._num_seen = len(generated_ids)
        bits &= self._words.mask(self._state)


class CompiledBadWords:
    """Makes `BadWords` in a thread, and keeps some. `make_tokens` returns the bytes of each token. Thread-safe."""

    def __init__(self, make_tokens: Callable[[], Sequence[bytes]]) -> None:
        self._make_tokens = make_tokens
        self._spellings: TokenSpellings | None = None
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, ...], Future[BadWords]] = OrderedDict()
        self._threads = ThreadPool(1, name="seesay-bad-words")

    def find(self, words: tuple[str, ...]) -> Future[BadWords]:
        """Return the form of a list of words, or what it will be set in."""
        with self._lock:
            future = self._kept.get(words)
            if future is not None:
                self._kept.move_to_end(words)
                return future
            future = self._kept[words] = Future()
            if len(self._kept) > _MAX_KEPT_LISTS:
                self._kept.popitem(last=False)
        self._threads.submit(self._make, words, future)
        return future

    def _make(self, words: tuple[str, ...], future: Future[BadWords]) -> None:
        try:
            if self._spellings is None:
                self._spellings = TokenSpellings(self._make_tokens())
            future.set_result(BadWords(words, self._spellings))
        except BaseException as error:
            with self._lock:
                self._kept.pop(words, None)
            future.set_exception(error)

    def close(self) -> None:
        """End the thread when it has made what was asked for."""
        threading.Thread(target=self._threads.close, name="seesay-bad-words-close", daemon=True).start()

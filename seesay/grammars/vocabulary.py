"""The tokens of a model as texts: how a text is cut into them, and which of them go on behind its end."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_MAX_TOKEN_BYTES = 128
"""Of longer tokens (runs of white space) none is looked for at the end of a text."""
_MAX_PREFIXES = 256
"""More tokens than this are not all beginnings of one text."""
_MAX_CUTS = 2048
"""Texts whose tokens are remembered: names of properties come again in every answer."""
_MAX_MASKS = 256
"""Masks whose first bytes are remembered: the same come behind the same text."""
_NO_TEXT = 256
"""In place of the first byte of a token that stands in no text."""


class Cut(NamedTuple):
    """The tokens of a text. ends: where each of them ends, in bytes. open_places: places, ascending, where a token of
    the vocabulary may begin that has the rest of the text and goes on behind it."""

    token_ids: tuple[int, ...]
    ends: tuple[int, ...]
    open_places: tuple[int, ...]


class Vocabulary:
    """Thread-safe."""

    def __init__(self, tokens: Sequence[bytes], encode: Callable[[str], Sequence[int]]) -> None:
        """tokens: the bytes of each token; none, or some that begin with 0xFF, for those that stand in no text (see
        `token_table`). encode: return the token ids of a text without special tokens around it."""
        self.tokens = tokens
        self._encode = encode
        self._texts = texts = [token if token[:1] != b"\xff" else b"" for token in tokens]
        self._firsts = np.array([text[0] if text else _NO_TEXT for text in texts], dtype=np.int64)
        self._sorted = sorted({text for text in texts if text})
        self._longest = min(max(map(len, self._sorted), default=0), _MAX_TOKEN_BYTES)
        self._first_bytes = lru_cache(maxsize=_MAX_MASKS)(self._find_first_bytes)
        self._only = lru_cache(maxsize=_MAX_CUTS)(self._find_only)
        self.cut = lru_cache(maxsize=_MAX_CUTS)(self._cut)
        """`cut(text)`: the `Cut` of a text in UTF-8, as the tokenizer makes it; one without tokens where the tokenizer
        changes the text."""

    def _cut(self, text: bytes) -> Cut:
        token_ids = self._find_tokens(text)
        ends = np.cumsum([len(self.tokens[token_id]) for token_id in token_ids]).tolist()
        first = max(0, len(text) - self._longest + 1)
        places = [place for place in range(first, len(text)) if self._has_longer(text[place:])]
        return Cut(token_ids, tuple(ends), tuple(places))

    def _find_tokens(self, text: bytes) -> tuple[int, ...]:
        """Some tokenizers put a space before each text. That is seen where it is a token of its own, so another text
        may stand before."""
        for lead in ("", "\n"):
            token_ids = self._encode(lead + text.decode())
            left = len(text)
            for start in range(len(token_ids) - 1, -1, -1):
                token_id = token_ids[start]
                left -= len(self.tokens[token_id]) if token_id < len(self.tokens) else left + 1
                if left <= 0:
                    break
            found = tuple(token_ids[start:]) if token_ids and left == 0 else ()
            if found and b"".join(map(self.tokens.__getitem__, found)) == text:
                return found
        return ()

    def _has_longer(self, text: bytes) -> bool:
        """Whether a token begins with a text and goes on."""
        index = bisect_right(self._sorted, text)
        return index < len(self._sorted) and self._sorted[index].startswith(text)

    def goes_on(self, text: bytes, next_bytes: frozenset[int]) -> bool:
        """Return whether a token begins with a text and goes on with one of these bytes."""
        for byte in next_bytes:
            beginning = text + bytes([byte])
            index = bisect_left(self._sorted, beginning)
            if index < len(self._sorted) and self._sorted[index].startswith(beginning):
                return True
        return False

    def has_text(self, token_id: int) -> bool:
        """Whether a token stands in texts."""
        return token_id < len(self._texts) and bool(self._texts[token_id])

    def find_only(self, bits: npt.NDArray[np.int32]) -> int | None:
        """Return the token with which each text that is allowed begins: the shortest allowed one, if all others go on
        behind it. None where there is a choice, or where something else than text may come. bits: one row of a mask."""
        places = np.flatnonzero(bits)
        if not 0 < len(places) <= _MAX_PREFIXES:
            return None
        return self._only(places.tobytes(), bits[places].tobytes())

    def _find_only(self, places: bytes, words: bytes) -> int | None:
        """places: int64, of the words of a mask that are not 0. words: these, int32."""
        is_allowed = np.unpackbits(np.frombuffer(words, np.uint8), bitorder="little").reshape(-1, 32)
        rows, columns = np.nonzero(is_allowed)
        found = (32 * np.frombuffer(places, np.int64)[rows] + columns).tolist()
        token_ids = [token_id for token_id in found if token_id < len(self._texts)]
        only = min(token_ids, key=lambda token_id: len(self._texts[token_id]), default=None)
        if only is None or not (text := self._texts[only]):
            return None
        return only if all(self._texts[token_id].startswith(text) for token_id in token_ids) else None

    def find_first_bytes(self, bits: npt.NDArray[np.int32]) -> frozenset[int]:
        """Return the bytes with which the texts of the allowed tokens begin. bits: one row of a mask."""
        return self._first_bytes(bits.tobytes())

    def _find_first_bytes(self, bits: bytes) -> frozenset[int]:
        is_allowed = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[: len(self.tokens)] > 0
        counts = np.bincount(self._firsts[is_allowed], minlength=_NO_TEXT + 1)
        return frozenset(np.flatnonzero(counts[:_NO_TEXT]).tolist())

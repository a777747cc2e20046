"""Incremental detokenization: turn ids into text while they are generated. Text that was returned never changes.

All pieces together equal `tokenizer.decode` of all ids, up to a stop word. The time per token is constant.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from seesay.processors.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """New text, and the stop word that ended it, if any."""

    text: str
    stop: str | None = None


class IncrementalDetokenizer:
    """Detokenize one sequence, and stop it at stop words.

    A stop word may span tokens and calls: a suffix that may become one is held back. Of two stop words, the one that is
    complete first wins, then the longer one.

    skip_special_tokens: leave special tokens out of the text. One that is itself a stop word still stops.
    kept_tokens: special tokens that stay in the text all the same.
    min_tokens: a stop word that is complete within this number of tokens does not stop.
    include_stop_str: keep the stop word in the text.
    spaces_between_special_tokens: False drops the spaces that some decoders put between two consecutive added tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        kept_tokens: Sequence[str] = (),
        stop_words: Sequence[str] = (),
        min_tokens: int = 0,
        include_stop_str: bool = False,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped_ids = tokenizer.special_ids if skip_special_tokens else frozenset()
        if kept_tokens:
            added = tokenizer.added_tokens
            self._skipped_ids = frozenset(i for i in self._skipped_ids if added[i] not in kept_tokens)
        self._stop_words = frozenset(stop_words)
        self._matcher = _StopMatcher(self._stop_words)
        self._num_bound = min_tokens  # remaining tokens that cannot complete a stop word
        self._include_stop_str = include_stop_str
        self._decoder: _Decoder
        if tokenizer.has_byte_level_decoder:
            self._decoder = _ByteLevelDecoder(tokenizer)
        else:
            joins_added = not spaces_between_special_tokens and not skip_special_tokens
            self._decoder = _WindowDecoder(tokenizer, joins_added)
        self._held = ""
        self._stop: str | None = None

    @property
    def stop(self) -> str | None:
        """The stop word that ended the text, or None. Later tokens give no text."""
        return self._stop

    @property
    def stop_words(self) -> frozenset[str]:
        """The words that stop it."""
        return self._stop_words

    @property
    def stops_at_words(self) -> bool:
        """Whether there are stop words."""
        return bool(self._stop_words)

    def push(self, token_ids: Iterable[int]) -> TextDelta:
        """Add ids, and return the text that is final now."""
        if not self._stop_words:
            return TextDelta(text=self.add(token_ids))
        text = ""
        for token_id in token_ids:
            if self._stop is not None:
                break
            may_stop = self._num_bound <= 0
            self._num_bound -= 1
            if token_id not in self._skipped_ids:
                text += self._take(self._decoder.push(token_id), may_stop=may_stop)
            elif may_stop and (spelling := self._tokenizer.added_tokens[token_id]) in self._stop_words:
                text += self._take(self._decoder.flush()) + self._held * (self._stop is None)
                self._held = ""
                if self._stop is None:
                    self._stop = spelling
                    text += spelling if self._include_stop_str else ""
        return TextDelta(text=text, stop=self._stop)

    def add(self, token_ids: Iterable[int]) -> str:
        """Add ids where there are no stop words, and return the new text."""
        assert not self._stop_words
        push, skipped_ids = self._decoder.push, self._skipped_ids
        return "".join([push(token_id) for token_id in token_ids if token_id not in skipped_ids])

    def flush(self) -> str:
        """Return the rest of the text after the last id: text that was held back, and incomplete characters as
        U+FFFD."""
        if self._stop is not None:
            return ""
        text = self._take(self._decoder.flush(), may_stop=self._num_bound < 0)
        held, self._held = self._held, ""
        return text if self._stop is not None else text + held

    def _take(self, piece: str, *, may_stop: bool = True) -> str:
        """Add decoded text, and return the part that can be emitted."""
        if not self._stop_words or not piece:
            return piece
        text = self._held + piece
        found = self._matcher.feed(piece, may_stop=may_stop)
        if found is not None:
            word, end_in_piece = found
            end = len(self._held) + end_in_piece
            self._stop, self._held = word, ""
            return text[: end if self._include_stop_str else end - len(word)]
        keep = self._matcher.num_pending
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


class _StopMatcher:
    """Find any of several words in a text that comes in pieces (Knuth, Morris and Pratt 1977, one automaton each)."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = sorted(words, key=lambda word: (-len(word), word))  # longest first
        self._borders = [_borders(word) for word in self._words]
        self._matched = [0] * len(self._words)

    @property
    def num_pending(self) -> int:
        """Number of characters at the end of the text that may be the beginning of a word."""
        return max(self._matched, default=0)

    def feed(self, piece: str, *, may_stop: bool) -> tuple[str, int] | None:
        """Return the word that is complete first, and the offset in `piece` where it ends. None if there is none, or if
        `may_stop` is False."""
        for position, char in enumerate(piece, start=1):
            for index, word in enumerate(self._words):
                matched = self._matched[index]
                while matched and word[matched] != char:
                    matched = self._borders[index][matched - 1]
                matched += word[matched] == char
                if matched == len(word):
                    if may_stop:
                        return word, position
                    matched = self._borders[index][-1]
                self._matched[index] = matched
        return None


def _borders(word: str) -> list[int]:
    """Return, for each prefix of `word`, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(word)
    length = 0
    for index in range(1, len(word)):
        while length and word[index] != word[length]:
            length = borders[length - 1]
        length += word[index] == word[length]
        borders[index] = length
    return borders


class _Decoder(Protocol):
    """Turn ids into text. Does not handle stop words or skipped special tokens."""

    def push(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


class _ByteLevelDecoder:
    """Decode byte-level BPE: tokens are bytes of UTF-8 text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._bytes_of = tokenizer.spelling.bytes_of
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_inside = False  # the last bytes are the beginning of a character

    def push(self, token_id: int) -> str:
        data = self._bytes_of(token_id)
        if not self._is_inside and data.isascii():
            return data.decode("ascii")
        text = self._utf8.decode(data)
        self._is_inside = bool(self._utf8.getstate()[0])
        return text

    def flush(self) -> str:
        self._is_inside = False
        return self._utf8.decode(b"", final=True)


class _WindowDecoder:
    """Any other decoder: decode the new tokens after one known token, and cut off the text of that token.

    This needs a decoder that is local. Two cases are not local. A run of byte tokens (<0x0A>) that is not valid UTF-8
    as a whole becomes one U+FFFD per byte, so a run is held back until it ends. At the beginning of the text a space
    may be dropped, so there the window has no token before it and grows until there is text.
    """

    _BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")

    def __init__(self, tokenizer: Tokenizer, joins_added: bool) -> None:
        self._backend = tokenizer.backend
        self._added = tokenizer.added_tokens
        self._joins_added = joins_added
        self._anchor_id, self._anchor = _find_anchor(tokenizer)
        self._window: list[int] = []
        self._is_first = True
        self._follows_added = False

    def push(self, token_id: int) -> str:
        token: str | None = self._backend.id_to_token(token_id)
        if token is None:
            return ""
        if self._BYTE_TOKEN.fullmatch(token) and token_id not in self._added:
            self._window.append(token_id)
            self._follows_added = False
            return ""
        is_added = token_id in self._added
        joins = self._joins_added and is_added and self._follows_added
        self._follows_added = is_added
        if joins:
            text = self.flush() + token
            self._is_first = False
            return text
        self._window.append(token_id)
        return self.flush()

    def flush(self) -> str:
        if not self._window:
            return ""
        if self._is_first:
            text: str = self._backend.decode(self._window, skip_special_tokens=False)
            if text:
                self._is_first = False
                self._window.clear()
            return text
        text = self._backend.decode([self._anchor_id, *self._window], skip_special_tokens=False)
        self._window.clear()
        assert text.startswith(self._anchor), f"decoder of {self._backend} is not local"
        return text[len(self._anchor) :]


def _find_anchor(tokenizer: Tokenizer) -> tuple[int, str]:
    """Return a plain token that decodes to itself whatever follows, to put before a window."""
    for token in ("a", "e", "i", "0", ".", "▁a", "▁the"):
        token_id = tokenizer.token_id(token)
        if token_id is not None and token_id not in tokenizer.added_tokens:
            return token_id, tokenizer.decode([token_id], skip_special_tokens=False)
    for token_id in range(tokenizer.vocab_size):
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        if token_id not in tokenizer.added_tokens and text.isalnum():
            return token_id, text
    raise AssertionError("the vocabulary has no plain token")

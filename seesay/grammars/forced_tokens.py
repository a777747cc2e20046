"""The tokens of the text that a grammar leaves no choice about.

A forced text is cut as the model's tokenizer cuts it, up to the place where a token could begin that goes on behind the
text, as the grammar does: that one is the model's choice. So the text is the same as without, and is cut into tokens in
the usual way where the model might have cut it otherwise.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np
import numpy.typing as npt

from seesay.grammars.vocabulary import Vocabulary

LEAST_TOKENS = 2
"""Fewer tokens are left to the model: they cannot be computed together."""
_MAX_BYTES = 1024
"""Of a forced text that are looked for at once: some grammars force texts without an end, or of 2 ** 40 letters."""


class ForcedTokens:
    """Of one sequence. matcher: xgrammar's, which others move on; it is as it was after each call."""

    def __init__(self, matcher: Any, vocabulary: Vocabulary, stop_token_ids: Container[int]) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._stop_token_ids = stop_token_ids
        self._text = b""  # what is known to come next
        self._is_settled = False  # whether no more of the text can be cut before some other token comes
        self._token_ids: tuple[int, ...] = ()

    def follow(self, token_id: int) -> None:
        """The matcher has accepted a token."""
        if not self._text:
            return
        self._text = self._text[len(self._vocabulary.tokens[token_id]) :]
        is_next = bool(self._token_ids) and self._token_ids[0] == token_id
        self._token_ids = self._token_ids[1:] if is_next else ()

    def find(self) -> tuple[int, ...]:
        """Return the tokens that come next; none where there is a choice."""
        if not self._text:
            self._text, self._is_settled = self._find_text(), False
        if self._text and not self._token_ids and not self._is_settled:
            self._cut()
        return self._token_ids

    def _find_text(self) -> bytes:
        """The forced text, whole characters of it; its beginning where it is long. Nothing where no token fits."""
        parts: list[bytes] = []
        num_bytes = 0
        try:
            while num_bytes < _MAX_BYTES:
                token_id = self._vocabulary.find_only(bits := self._fill())
                if token_id is None or token_id in self._stop_token_ids or not self._matcher.accept_token(token_id):
                    if not bits.any():
                        return b""
                    break
                parts.append(self._vocabulary.tokens[token_id])
                num_bytes += len(parts[-1])
        finally:
            self._matcher.rollback(len(parts))
        return b"".join(parts).decode("utf-8", "ignore").encode()

    def _fill(self) -> npt.NDArray[np.int32]:
        """The mask of the next token, int32 [ceil(V / 32)]."""
        bits = np.full((1, -(-len(self._vocabulary.tokens) // 32)), -1, dtype=np.int32)
        self._matcher.fill_next_token_bitmask(bits, 0)
        row: npt.NDArray[np.int32] = bits[0]
        return row

    def _cut(self) -> None:
        """Cut the text into tokens, as far as what comes behind it cannot change them."""
        self._is_settled = True
        token_ids, ends, open_places = self._vocabulary.cut(self._text)
        next_bytes = None if len(token_ids) < LEAST_TOKENS else self._find_next_bytes(token_ids)
        if next_bytes is None:
            return
        whole = len(self._text)
        stop = next((place for place in open_places if self._vocabulary.goes_on(self._text[place:], next_bytes)), whole)
        num_kept = sum(end <= stop for end in ends)
        if num_kept >= LEAST_TOKENS:
            self._token_ids = token_ids[:num_kept]
            if whole >= _MAX_BYTES:  # there may be more of it
                self._text = self._text[: ends[num_kept - 1]]

    def _find_next_bytes(self, token_ids: tuple[int, ...]) -> frozenset[int] | None:
        """The bytes that may come behind these tokens; None where the grammar does not take them as text."""
        num_accepted = 0
        try:
            for token_id in token_ids:
                if token_id in self._stop_token_ids or not self._matcher.accept_token(token_id):
                    return None
                num_accepted += 1
            return self._vocabulary.find_first_bytes(self._fill())
        finally:
            self._matcher.rollback(num_accepted)

"""The tokens of the text that a grammar leaves no choice about.

A forced text is cut as the model's tokenizer cuts it, up to the place where a token could begin that goes on behind the
text, as the grammar does: that one is the model's choice. So the text is the same as without, and is cut into tokens in
the usual way where the model might have cut it otherwise.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np

from seesay.grammars.vocabulary import Vocabulary

LEAST_TOKENS = 2
"""Fewer tokens are left to the model: they cannot be computed together."""
_MAX_BYTES = 1024
"""Of a forced text that are cut at once."""


class ForcedTokens:
    """Of one sequence. matcher: xgrammar's, which others move on; it is as it was after each call."""

    def __init__(self, matcher: Any, vocabulary: Vocabulary, stop_token_ids: Container[int]) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._stop_token_ids = stop_token_ids
        self._text = b""  # what is known to come next
        self._goes_on: int | None = None  # the byte that comes behind it, where only the beginning of that is known
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
            self._text, self._goes_on = self._find_text()
            self._is_settled = False
        if self._text and not self._token_ids and not self._is_settled:
            self._token_ids = self._cut()
        return self._token_ids

    def _find_text(self) -> tuple[bytes, int | None]:
        """The forced text, and the byte behind it where that begins a character of which no more is forced."""
        try:
            return self._matcher.find_jump_forward_string().encode(), None
        except UnicodeDecodeError as error:
            known = error.object[: error.start]
            return known, error.object[error.start]

    def _cut(self) -> tuple[int, ...]:
        """Cut the first part of the text into tokens, as far as what comes behind it cannot change them."""
        part = self._text[: _find_boundary(self._text, _MAX_BYTES)]
        self._is_settled = len(part) == len(self._text)
        token_ids, ends, open_places = self._vocabulary.cut(part)
        if len(token_ids) < LEAST_TOKENS:
            return ()
        next_bytes = self._find_next_bytes(token_ids)
        if next_bytes is None:
            return ()
        if not self._is_settled:
            next_bytes = frozenset(self._text[len(part) : len(part) + 1])
        elif self._goes_on is not None:
            next_bytes = frozenset([self._goes_on])
        stop = next((place for place in open_places if self._vocabulary.goes_on(part[place:], next_bytes)), len(part))
        num_kept = sum(end <= stop for end in ends)
        return token_ids[:num_kept] if num_kept >= LEAST_TOKENS else ()

    def _find_next_bytes(self, token_ids: tuple[int, ...]) -> frozenset[int] | None:
        """The bytes that may come behind these tokens; None where the grammar does not take them as text."""
        num_accepted = 0
        try:
            for token_id in token_ids:
                if token_id in self._stop_token_ids or not self._matcher.accept_token(token_id):
                    return None
                num_accepted += 1
            bits = np.full((1, -(-len(self._vocabulary.tokens) // 32)), -1, dtype=np.int32)
            self._matcher.fill_next_token_bitmask(bits, 0)
            return self._vocabulary.find_first_bytes(bits[0])
        finally:
            self._matcher.rollback(num_accepted)


def _find_boundary(text: bytes, most: int) -> int:
    """The last place up to `most` where a character of a text in UTF-8 ends."""
    if len(text) <= most:
        return len(text)
    while text[most] & 0xC0 == 0x80:
        most -= 1
    return most

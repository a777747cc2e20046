"""Finds out what follows in a text that repeats itself: the tokens behind the place where its last tokens stood before
(Saxena 2023, "Prompt Lookup Decoding"). Costs the same for each token, however long the text is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

NGRAM = 3
"""Tokens that must have stood in the text before, for the ones behind them to be expected again."""
MOST_INDEXED = 1 << 15
"""Tokens of a prompt that are indexed, the last ones."""
FIRST_RATE = 0.5
"""Of a text that was not observed yet."""
LEAST_RATE = 0.5
"""With a lower rate of right predictions, nothing is proposed."""
_WEIGHT = 1 / 8
_LEAST_CHANCE = 0.15
"""With a lower chance to be accepted, a token is not proposed."""
_BITS = 21
_MASK = (1 << 3 * _BITS) - 1


class TextFollower:
    """Follows the tokens of one sequence and predicts each from those before. Whether a prediction was right is known
    whether or not it was proposed, so a text that begins to repeat itself is noticed at no cost.

    num_tokens: those that it knows. rate: share of right ones among the last predictions. expected: where the token
    that is expected next stands in the text; None where nothing is expected.
    """

    def __init__(self, token_ids: npt.NDArray[np.int64], *, before: npt.NDArray[np.int64] | None = None) -> None:
        """`token_ids`: int64 [T], those that are known: the prompt, say. `before`: int64 [N], of texts that are no part
        of this one, and may come again in it."""
        self.rate = FIRST_RATE
        self.expected: int | None = None
        self._ids: list[int] = []
        self._key = 0
        self._places: dict[int, int] = {}  # an n-gram → place of the token behind the last one of it
        self.num_tokens = 0
        if before is not None:
            self.learn(before)
        self.num_tokens = max(0, len(token_ids) - MOST_INDEXED)
        self.learn(token_ids[-MOST_INDEXED:])

    def learn(self, token_ids: npt.NDArray[np.int64]) -> None:
        """Take many tokens at once, about which no predictions were made."""
        first = max(0, len(self._ids) - NGRAM)
        self._ids += token_ids.tolist()
        self.num_tokens += len(token_ids)
        text = np.array(self._ids[first:], dtype=np.int64)
        if len(text) > NGRAM:
            keys = (text[:-3] << 2 * _BITS) | (text[1:-2] << _BITS) | text[2:-1]
            self._places.update(zip(keys.tolist(), range(first + NGRAM, len(self._ids)), strict=True))
        for token_id in self._ids[-NGRAM:]:
            self._key = (self._key << _BITS | token_id) & _MASK
        self.expected = self._places.get(self._key) if len(self._ids) >= NGRAM else None

    @property
    def is_sure(self) -> bool:
        """Whether a token is expected, and predictions were right often enough."""
        return self.expected is not None and self.rate >= LEAST_RATE

    def follow(self, token_ids: Iterable[int]) -> None:
        """Take the tokens that came, and see which of them were expected."""
        for token_id in token_ids:
            self.num_tokens += 1
            place, expected = len(self._ids), self.expected
            is_right = expected is not None and self._ids[expected] == token_id
            if expected is not None:
                self.rate += (is_right - self.rate) * _WEIGHT
            if place >= NGRAM:
                self._places[self._key] = place
            self._ids.append(token_id)
            self._key = (self._key << _BITS | token_id) & _MASK
            self.expected = self._places.get(self._key) if expected is None or not is_right else expected + 1

    def propose(self, most: int) -> tuple[int, ...]:
        """Return up to `most` tokens that are expected next: as many as have a fair chance to be right together."""
        if not self.is_sure:
            return ()
        start = self.expected
        assert start is not None
        if self.rate < 1:
            most = min(most, max(1, int(math.log(_LEAST_CHANCE) / math.log(self.rate))))
        period = len(self._ids) - start  # a text that is repeated up to its end goes on from its beginning
        return tuple(self._ids[start + index % period] for index in range(most))

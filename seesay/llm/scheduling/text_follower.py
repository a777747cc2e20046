"""Finds out what follows in a text that repeats itself: the tokens behind the place where its last tokens stood before
(Saxena 2023, "Prompt Lookup Decoding"). Costs the same for each token, however long the text is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from seesay.llm.plans.followed_text import NGRAM, WEIGHT
from seesay.llm.plans.step_plan import MAX_DRAFTS

MOST_INDEXED = 1 << 15
"""Tokens of a prompt that are indexed, the last ones."""
FIRST_RATE = 0.5
"""Of a text that was not observed yet."""
LEAST_RATE = 0.5
"""With a lower rate of right predictions, nothing is proposed."""
_LEAST_CHANCE = 0.15
"""With a lower chance to be accepted, a token is not proposed."""
_LEAST_RATES = tuple(_LEAST_CHANCE ** (1 / count) for count in range(1, MAX_DRAFTS + 1))
"""Rates from which on 1, 2, … tokens are proposed."""
_BITS = 21
_MASK = (1 << 3 * _BITS) - 1


def find_least_rates(most: int) -> list[float]:
    """Return the rates of a text from which on 1, 2, … `most` tokens are proposed."""
    return [LEAST_RATE, *(max(LEAST_RATE, rate) for rate in _LEAST_RATES[1:most])]


class TextFollower:
    """Follows the tokens of one sequence and predicts each from those before. Whether a prediction was right is known
    whether or not it was proposed, so a text that begins to repeat itself is noticed at no cost.

    num_tokens: those that it knows. token_ids, rate, expected: see `FollowedText`.
    """

    def __init__(self, token_ids: npt.NDArray[np.int64], *, before: npt.NDArray[np.int64] | None = None) -> None:
        """`token_ids`: int64 [T], those that are known: the prompt, say. `before`: int64 [N], of texts that are no part
        of this one, and may come again in it."""
        self.rate = FIRST_RATE
        self.expected: int | None = None
        self.token_ids: list[int] = []
        self._key = 0
        self._places: dict[int, int] = {}  # an n-gram → place of the token behind the last one of it
        self.num_tokens = 0
        if before is not None:
            self.learn(before)
        self.num_tokens = max(0, len(token_ids) - MOST_INDEXED)
        self.learn(token_ids[-MOST_INDEXED:])

    def learn(self, token_ids: npt.NDArray[np.int64]) -> None:
        """Take many tokens at once, about which no predictions were made."""
        first = max(0, len(self.token_ids) - NGRAM)
        self.token_ids += token_ids.tolist()
        self.num_tokens += len(token_ids)
        text = np.array(self.token_ids[first:], dtype=np.int64)
        if len(text) > NGRAM:
            keys = (text[:-3] << 2 * _BITS) | (text[1:-2] << _BITS) | text[2:-1]
            self._places.update(zip(keys.tolist(), range(first + NGRAM, len(self.token_ids)), strict=True))
        for token_id in self.token_ids[-NGRAM:]:
            self._key = (self._key << _BITS | token_id) & _MASK
        self.expected = self._places.get(self._key) if len(self.token_ids) >= NGRAM else None

    @property
    def is_sure(self) -> bool:
        """Whether a token is expected, and predictions were right often enough."""
        return self.expected is not None and self.rate >= LEAST_RATE

    def follow(self, token_ids: Iterable[int]) -> None:
        """Take the tokens that came, and see which of them were expected."""
        for token_id in token_ids:
            self.num_tokens += 1
            place, expected = len(self.token_ids), self.expected
            is_right = expected is not None and self.token_ids[expected] == token_id
            if expected is not None:
                self.rate += (is_right - self.rate) * WEIGHT
            if place >= NGRAM:
                self._places[self._key] = place
            self.token_ids.append(token_id)
            self._key = (self._key << _BITS | token_id) & _MASK
            self.expected = self._places.get(self._key) if expected is None or not is_right else expected + 1

    def propose(self, most: int) -> tuple[int, ...]:
        """Return up to `most` tokens that are expected next: as many as have a fair chance to be right together."""
        if not self.is_sure:
            return ()
        start = self.expected
        assert start is not None
        most = min(most, max(1, bisect_right(_LEAST_RATES, self.rate)))
        period = len(self.token_ids) - start  # a text that is repeated up to its end goes on from its beginning
        return tuple(self.token_ids[start + index % period] for index in range(most))

"""How a text that repeats itself is followed, alike on the host and on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

NGRAM = 3
"""Tokens that must have stood in the text before, for the ones behind them to be expected again."""
WEIGHT = 1 / 8
"""Of one prediction in the rate of right ones. A power of two: products with it are exact."""


class FollowedText(Protocol):
    """A text with what is known of it. token_ids: all its tokens, and before them those of texts that may come again.
    rate: share of right ones among the last predictions. expected: where the token that is expected next stands among
    `token_ids`; None where nothing is expected."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def rate(self) -> float: ...
    @property
    def expected(self) -> int | None: ...

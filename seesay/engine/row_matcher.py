"""The rules that one sequence follows, as the mask of its next token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from seesay.llm.ngrams import find_followers

if TYPE_CHECKING:
    from seesay.grammars.bad_words import BadWordsMatcher
    from seesay.grammars.row_rule import RowRule


class RowMatcher:
    """Follows the generated tokens of a sequence. Used by one thread at a time.

    rule: of its thought and grammar. words: must not appear in it. ngram_size: no n-gram of so many tokens comes twice
    in prompt and answer; 0 allows all.
    """

    def __init__(
        self,
        *,
        rule: RowRule | None,
        words: BadWordsMatcher | None,
        ngram_size: int,
        prompt_ids: npt.NDArray[np.int64],
        vocab_size: int,
    ) -> None:
        self._rule = rule
        self._words = words
        self._ngram_size = ngram_size
        self._prompt_ids = prompt_ids
        self._vocab_size = vocab_size

    @property
    def is_over(self) -> bool:
        """Whether nothing is forbidden any more: never."""
        return False

    def may_forbid(self, num_generated: int) -> bool:  # noqa: ARG002 - a `RowRule` looks at it
        """Whether a token may be forbidden behind so many generated ones: always."""
        return True

    def fill(self, generated_ids: npt.NDArray[np.int64], bits: npt.NDArray[np.int32], row: int) -> bool:
        """Write the mask of the next token to a row of `bits`. Returns whether it forbids any."""
        is_masked = self._rule is not None and self._rule.fill(generated_ids, bits, row)
        if not is_masked:
            bits[row] = -1
        if self._words is not None:
            self._words.forbid(generated_ids, bits[row])
        if self._ngram_size:
            followers = find_followers(np.concatenate([self._prompt_ids, generated_ids]), self._ngram_size)
            _forbid(followers[followers < self._vocab_size], bits[row])
        return True


def _forbid(token_ids: npt.NDArray[np.int64], bits: npt.NDArray[np.int32]) -> None:
    """Take tokens out of a mask."""
    words = np.zeros(len(bits), np.uint32)
    np.bitwise_or.at(words, token_ids >> 5, np.uint32(1) << (token_ids & 31).astype(np.uint32))
    bits &= ~words.view(np.int32)

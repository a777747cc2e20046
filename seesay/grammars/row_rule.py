"""The rule that the tokens of one answer follow: a thought of limited length, a grammar, or both one after the other.

All that a rule knows comes from tokens that are committed, so nothing has to be kept when a sequence is preempted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from seesay.grammars.thought import Phase, ThoughtTracker

Ids = npt.NDArray[np.int64]
Bits = npt.NDArray[np.int32]


class GrammarMatcher(Protocol):
    """Follows a grammar: see `seesay.grammars.masks.Matcher`."""

    def fill(self, generated_ids: Ids, bits: Bits, row: int) -> bool: ...

    def find_forced(self) -> tuple[int, ...]: ...


class RowRule:
    """Makes the masks of one answer, as `seesay.grammars.masks.Matcher` does.

    In a thought every token is allowed until the limit, where the tokens of the end marker are forced. Where a grammar
    follows, the answer does not end in the thought, and no token ends the marker and goes on behind it.

    forced: after `fill`, the tokens that come next in any case.
    """

    def __init__(
        self,
        *,
        thought: ThoughtTracker | None,
        make_matcher: Callable[[], GrammarMatcher] | None = None,
        ending_token_ids: Sequence[int] = (),
        overshoots: Mapping[bytes, Sequence[int]] | None = None,
    ) -> None:
        """make_matcher: of the grammar, for a text that begins. overshoots: those of the thought's end marker
        (`CompiledGrammars.find_overshoots`), beside a grammar."""
        self._thought = thought
        self._make_matcher = make_matcher
        self._matcher = None if make_matcher is None else make_matcher()
        self._ending_token_ids = ending_token_ids
        self._overshoots = overshoots
        self.forced: tuple[int, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether nothing is forbidden any more."""
        return self._matcher is None and (self._thought is None or self._thought.is_over)

    def may_forbid(self, num_generated: int) -> bool:
        """Whether a token may be forbidden behind so many generated ones, as far as is known."""
        if self._matcher is not None:
            return True
        limit = None if self._thought is None else self._thought.rule.max_tokens
        return limit is not None and num_generated >= limit and not self.is_over

    def fill(self, generated_ids: Ids, bits: Bits, row: int) -> bool:
        """Follow the generated tokens, and write the mask of the next one to a row of `bits`. Returns whether it
        forbids any. Raises ValueError for a token that the grammar does not allow."""
        thought, self.forced = self._thought, ()
        if thought is not None and not thought.is_over:
            thought.follow(generated_ids[thought.num_followed :].tolist())
            if thought.phase is Phase.INSIDE:
                return self._fill_inside(thought, bits, row)
            if thought.phase is Phase.BEFORE:
                return self._fill_before(thought, generated_ids, bits, row)
            if thought.stop and self._make_matcher is not None:  # the old one may have followed a begin marker
                self._matcher = self._make_matcher()
        if self._matcher is None:
            return False
        start = 0 if thought is None else thought.stop
        is_masked = self._matcher.fill(generated_ids[start:], bits, row)
        self.forced = self._matcher.find_forced()
        return is_masked if not self.forced else self._allow_first(bits[row])

    def _allow_first(self, words: Bits) -> bool:
        """Allow the first forced token alone."""
        words[:] = 0
        _set_bits(words, self.forced[:1], allowed=True)
        return True

    def _fill_inside(self, thought: ThoughtTracker, bits: Bits, row: int) -> bool:
        limit = thought.rule.max_tokens
        if limit is not None and thought.num_inside >= limit:
            at = thought.num_inside - limit
            # A marker of which a part is there already may be complete before all of these tokens are.
            is_whole = at == 0 and not thought.begun_end
            self.forced = thought.rule.end_ids[at : None if is_whole else at + 1]
            return self._allow_first(bits[row])
        if self._matcher is None:
            return False
        assert self._overshoots is not None
        bits[row] = -1
        _set_bits(bits[row], self._ending_token_ids, allowed=False)
        _set_bits(bits[row], self._overshoots[thought.begun_end], allowed=False)
        return True

    def _fill_before(self, thought: ThoughtTracker, generated_ids: Ids, bits: Bits, row: int) -> bool:
        """The next token begins a thought, goes on with its marker, or begins the text of the grammar."""
        if self._matcher is None:
            return False
        begin_ids, num = thought.rule.begin_ids, len(generated_ids)
        is_begun = num < len(begin_ids) and tuple(generated_ids.tolist()) == begin_ids[:num]
        try:
            is_masked = self._matcher.fill(generated_ids, bits, row)
        except ValueError:
            if not is_begun:
                raise
            bits[row] = 0
            is_masked = True
        if is_masked and is_begun:
            _set_bits(bits[row], [begin_ids[num]], allowed=True)
        return is_masked


def _set_bits(words: npt.NDArray[np.int32], token_ids: Iterable[int], *, allowed: bool) -> None:
    """Allow or forbid tokens in one row of a mask."""
    unsigned, num_tokens = words.view(np.uint32), 32 * len(words)
    for token_id in token_ids:
        if token_id < num_tokens:
            bit = np.uint32(1 << (token_id % 32))
            word = unsigned[token_id // 32]
            unsigned[token_id // 32] = word | bit if allowed else word & ~bit

"""The rule that the tokens of one answer follow: a thought of limited length, a grammar, or both one after the other.

All that a rule knows comes from tokens that are committed, so nothing has to be kept when a sequence is preempted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from seesay.grammars.matcher import allow_only, set_bits
from seesay.grammars.thought import Phase, ThoughtTracker

Ids = npt.NDArray[np.int64]
Words = npt.NDArray[np.int32]


class GrammarMatcher(Protocol):
    """Follows a grammar: see `seesay.grammars.matcher.Matcher`."""

    def take(self, token_id: int, num_generated: int) -> tuple[Any, int] | None: ...

    def follow(self, generated_ids: Ids) -> Any: ...

    def finish(self, words: Words) -> bool: ...

    def fork(self) -> GrammarMatcher: ...

    @property
    def forced(self) -> tuple[int, ...]: ...


class RowRule:
    """Makes the masks of one answer, as `seesay.grammars.matcher.Matcher` does.

    In a thought every token is allowed until the limit, where the tokens of the end marker are forced. Where a grammar
    follows, the answer does not end in the thought, and no token ends the marker and goes on behind it.

    forced: after `finish`, the tokens that come next in any case.
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
        self._finish: Callable[[Words], bool] = _allow_all
        self.forced: tuple[int, ...] = ()

    def fork(self) -> RowRule:
        """Return a copy that follows other tokens from here on."""
        other = copy(self)
        other._thought = None if self._thought is None else self._thought.fork()
        other._matcher = None if self._matcher is None else self._matcher.fork()
        return other

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

    def take(self, token_id: int, num_generated: int) -> tuple[Any, int] | None:
        """See `Matcher.take`: a token of a thought is none of the grammar's."""
        thought = self._thought
        if self._matcher is None or (thought is not None and not thought.is_over):
            return None
        return self._matcher.take(token_id, num_generated - (0 if thought is None else thought.stop))

    def follow(self, generated_ids: Ids) -> Any:
        """Follow the generated tokens. Returns what fills the mask of the next one before `finish`, or None. Raises
        ValueError for a token that the grammar does not allow."""
        thought, self.forced = self._thought, ()
        if thought is not None and not thought.is_over:
            thought.follow(generated_ids[thought.num_followed :].tolist())
            if thought.phase is Phase.INSIDE:
                self._finish = lambda words: self._finish_inside(thought, words)
                return None
            if thought.phase is Phase.BEFORE:
                return self._follow_before(thought, generated_ids)
            if thought.stop and self._make_matcher is not None:  # the old one may have followed a begin marker
                self._matcher = self._make_matcher()
        matcher = self._matcher
        if matcher is None:
            self._finish = _allow_all
            return None
        self._finish = lambda words: self._finish_grammar(matcher, words)
        return matcher.follow(generated_ids[0 if thought is None else thought.stop :])

    def finish(self, words: Words) -> bool:
        """Complete the mask of the next token, behind `follow`. Returns whether it forbids any."""
        return self._finish(words)

    def _finish_grammar(self, matcher: GrammarMatcher, words: Words) -> bool:
        is_masked = matcher.finish(words)
        self.forced = matcher.forced
        return is_masked

    def _finish_inside(self, thought: ThoughtTracker, words: Words) -> bool:
        limit = thought.rule.max_tokens
        if limit is not None and thought.num_inside >= limit:
            at = thought.num_inside - limit
            # A marker of which a part is there already may be complete before all of these tokens are.
            is_whole = at == 0 and not thought.begun_end
            self.forced = thought.rule.end_ids[at : None if is_whole else at + 1]
            return allow_only(words, self.forced[:1])
        if self._matcher is None:
            return False
        assert self._overshoots is not None
        words[:] = -1
        set_bits(words, self._ending_token_ids, allowed=False)
        set_bits(words, self._overshoots[thought.begun_end], allowed=False)
        return True

    def _follow_before(self, thought: ThoughtTracker, generated_ids: Ids) -> Any:
        """The next token begins a thought, goes on with its marker, or begins the text of the grammar."""
        matcher = self._matcher
        if matcher is None:
            self._finish = _allow_all
            return None
        begin_ids, num = thought.rule.begin_ids, len(generated_ids)
        is_begun = num < len(begin_ids) and tuple(generated_ids.tolist()) == begin_ids[:num]
        next_ids = begin_ids[num : num + 1] if is_begun else ()
        try:
            inner = matcher.follow(generated_ids)
        except ValueError:
            if not is_begun:
                raise
            self._finish = lambda words: allow_only(words, next_ids)
            return None
        self._finish = lambda words: _allow_also(words, matcher.finish(words), next_ids)
        return inner


def _allow_all(words: Words) -> bool:
    del words
    return False


def _allow_also(words: Words, is_masked: bool, token_ids: Sequence[int]) -> bool:
    set_bits(words, token_ids, allowed=True)
    return is_masked

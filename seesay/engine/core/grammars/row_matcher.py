"""The rules that one sequence follows, as the mask of its next token."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seesay.llm.plans.ngrams import find_followers
from seesay.llm.plans.no_token_error import make_no_token_error

if TYPE_CHECKING:
    from seesay.grammars.bad_words import BadWordsMatcher
    from seesay.grammars.matcher import Matcher
    from seesay.grammars.row_rule import RowRule
    from seesay.llm.plans.sampling_params import SamplingParams

Ids = npt.NDArray[np.int64]
Bits = npt.NDArray[np.int32]


class RowMatcher:
    """Follows the generated tokens of a sequence, and finds out when nothing is left to choose. Used by one thread at a
    time.

    rule: of its thought and grammar. words: must not appear in it. params: those of the sequence, whose allowed tokens
    and n-grams that must not come twice are counted here; tokens that the sampler forbids are counted as forbidden.
    """

    def __init__(
        self,
        *,
        rule: RowRule | Matcher | None,
        words: BadWordsMatcher | None,
        params: SamplingParams,
        has_grammar: bool,
        prompt_ids: Ids,
        vocab_size: int,
    ) -> None:
        self._rule = rule
        self._words = words
        self._params = params
        self._has_grammar = has_grammar
        self._prompt_ids = prompt_ids
        self._is_token = np.full(-(-vocab_size // 32), -1, np.int32)
        if vocab_size % 32:
            self._is_token[-1] = (1 << (vocab_size % 32)) - 1
        self._vocab_size = vocab_size
        self._generated_ids: Ids = np.empty(0, np.int64)
        self._bans: tuple[bool, list[tuple[int, int]]] | None = None
        self._has_restrictions, self._needs_masks = params.has_restrictions, params.needs_masks
        ids = np.array(params.allowed_token_ids, np.int64)
        self._allowed = _gather(ids, vocab_size) if params.allowed_token_ids else None

    def fork(self) -> RowMatcher:
        """Return a copy that follows other tokens from here on."""
        other = copy(self)
        other._rule = None if self._rule is None else self._rule.fork()
        other._words = None if self._words is None else copy(self._words)
        return other

    @property
    def is_over(self) -> bool:
        """Whether nothing is forbidden by masks any more: never with restrictions that need them."""
        return not self._needs_masks and (self._rule is None or self._rule.is_over)

    @property
    def forced(self) -> tuple[int, ...]:
        """The tokens that the rule leaves no choice about, after `finish`."""
        return () if self._rule is None else self._rule.forced

    def may_forbid(self, num_generated: int) -> bool:
        """Whether masks may forbid a token behind so many generated ones: always with restrictions that need them."""
        return self._needs_masks or (self._rule is not None and self._rule.may_forbid(num_generated))

    def take(self, token_id: int, num_generated: int) -> tuple[Any, int] | None:
        """See `Matcher.take`."""
        return None if self._rule is None else self._rule.take(token_id, num_generated)

    def follow(self, generated_ids: Ids) -> Any:
        """Follow the generated tokens. Returns what is to fill the mask of the next one before `finish`, or None."""
        self._generated_ids = generated_ids
        return None if self._rule is None else self._rule.follow(generated_ids)

    def finish(self, words: Bits) -> bool:
        """Complete the mask of the next token, behind `follow`: what options ban is not allowed either. Returns whether
        it forbids any. Raises `RequestError` where all tokens are forbidden, by the mask or by the sampler."""
        generated_ids = self._generated_ids
        is_masked = self._rule is not None and self._rule.finish(words)
        if not is_masked:
            words[:] = -1
        if not self._has_restrictions and self._ban(words, len(generated_ids)):
            return is_masked
        bits = words[: len(self._is_token)]
        own = "response_format" if self._has_grammar else "max_thinking_tokens"
        allowed = {own: bits.copy()} if is_masked else {}
        if self._words is not None:
            allowed["bad_words"] = np.full_like(self._is_token, -1)
            self._words.forbid(generated_ids, allowed["bad_words"])
            bits &= allowed["bad_words"]
        if self._allowed is not None:
            allowed["allowed_token_ids"] = self._allowed
            bits &= self._allowed
        if self._params.no_repeat_ngram_size:
            allowed["no_repeat_ngram_size"] = self._allow_others(
                _find_followers(self._params, np.concatenate([self._prompt_ids, generated_ids]))
            )
            bits &= allowed["no_repeat_ngram_size"]
        self._check_left(bits, allowed, len(generated_ids))
        self._ban(bits, len(generated_ids))
        return is_masked or self._needs_masks

    def _ban(self, bits: Bits, num_generated: int) -> bool:
        """Take away the tokens that options ban behind so many generated ones, unless nothing is left then. Returns
        whether something is."""
        is_held_back = num_generated < self._params.min_new_tokens
        if self._bans is None or self._bans[0] != is_held_back:
            others = self._allow_others(np.array(self._params.banned_token_ids(num_generated), np.int64))
            self._bans = is_held_back, _list_words(others)
        taken = [(place, before, kept) for place, kept in self._bans[1] if (before := bits.item(place)) & ~kept]
        if not taken:
            return True
        for place, before, kept in taken:
            bits[place] = before & kept
        last = len(self._is_token) - 1
        if np.count_nonzero(bits[:last]) or bits.item(last) & self._is_token.item(last):
            return True
        for place, before, _ in taken:
            bits[place] = before
        return False

    def _allow_others(self, token_ids: Ids) -> Bits:
        """A mask of all tokens but these."""
        return ~_gather(token_ids, self._vocab_size)

    def _check_left(self, bits: Bits, allowed: dict[str, Bits], num_generated: int) -> None:
        """Raise `RequestError` where no token is left, with the fewest options that together forbid all of them."""
        params = self._params
        if params.bad_token_ids:
            allowed["bad_token_ids"] = self._allow_others(np.array(params.bad_token_ids))
        if num_generated < params.min_new_tokens and params.ending_token_ids:
            allowed["min_new_tokens"] = self._allow_others(np.array(params.ending_token_ids))
        masks = [self._is_token & bits, *allowed.values()]
        if np.bitwise_and.reduce(masks).any():
            return
        names = list(allowed)
        for name in list(allowed):
            others = [mask for other, mask in allowed.items() if other in names and other != name]
            if not np.bitwise_and.reduce([self._is_token, *others]).any():
                names.remove(name)
        raise make_no_token_error(names, num_generated=num_generated)


def _list_words(mask: Bits) -> list[tuple[int, int]]:
    """Return the words of a mask that do not allow all of their tokens, with their places."""
    return [(place, mask.item(place)) for place in np.flatnonzero(mask != -1).tolist()]


def _find_followers(params: SamplingParams, token_ids: Ids) -> Ids:
    """Return the tokens that would complete an n-gram which was there before, and may not."""
    found = find_followers(token_ids, params.no_repeat_ngram_size, window=params.ngram_window)
    return np.setdiff1d(found, params.whitelist_token_ids) if params.whitelist_token_ids else found


def _gather(token_ids: Ids, vocab_size: int) -> Bits:
    """Return a mask of these tokens."""
    words = np.zeros(-(-vocab_size // 32), np.uint32)
    known = token_ids[token_ids < vocab_size]
    np.bitwise_or.at(words, known >> 5, np.uint32(1) << (known & 31).astype(np.uint32))
    return words.view(np.int32)

"""The state of one sequence's grammar, which follows its generated tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from seesay.errors import ErrorCode, RequestError
from seesay.grammars.compile import TOO_AMBIGUOUS, TokenTable, explain

Ids = npt.NDArray[np.int64]
Words = npt.NDArray[np.int32]
_MAX_FORCED = 256
"""Of a longer forced text, the next tokens are announced when these are there."""
_NOT_ALLOWED = ("doesn't satisfy the grammar", "parser stopped")


class Matcher:
    """Made for the tokens of one answer, and brought up to date with them. Used by one thread at a time.

    forced: after `finish`, the tokens that come next in any case.
    """

    def __init__(
        self,
        compiled: Any,
        table: TokenTable,
        stop_token_ids: Sequence[int],
        *,
        forces: bool = False,
        on_error: Callable[[], None] = lambda: None,
    ) -> None:
        """compiled: of `compile_program`, whose `forces` is the same. stop_token_ids: one of them is allowed where the
        answer is complete, and nowhere else. on_error: is called when the program can no longer be used."""
        self._inner = compiled.deep_copy()
        self._stop_token_ids = [token_id for token_id in stop_token_ids if token_id < table.eos_token_id]
        self._end = table.eos_token_id
        self._end_word, self._end_bit = self._end >> 5, 1 << (self._end & 31)
        self._table = table
        self._forces = forces
        self._on_error = on_error
        self._num_accepted = 0
        self.forced: tuple[int, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether nothing is forbidden any more: a grammar always says what may follow."""
        return False

    def may_forbid(self, num_generated: int) -> bool:
        """Whether a token may be forbidden behind so many generated ones."""
        del num_generated
        return True

    def fork(self) -> Matcher:
        """Return a copy that follows other tokens from here on."""
        other = copy(self)
        other._inner = self._inner.deep_copy()
        return other

    def take(self, token_id: int, num_generated: int) -> tuple[Any, int] | None:
        """Take the last of so many generated tokens, before `follow`. Returns (`LLMatcher`, token), for
        `LLExecutor.consume_token_par`; None where `follow` is to take it."""
        if num_generated != self._num_accepted + 1 or token_id == self._end or self.forced:
            return None
        self._num_accepted += 1
        return self._inner, token_id

    def follow(self, generated_ids: Ids) -> Any:
        """Follow the tokens that were generated. Returns what is to fill the mask of the next one (`LLMatcher`), before
        `finish`; None where it is known. Raises ValueError for a token that the grammar does not allow."""
        inner, forced = self._inner, self.forced
        if inner.is_error():  # by the token of `take`
            self._num_accepted -= 1
            self._refuse(generated_ids.item(-1))
        if len(generated_ids) > self._num_accepted:  # else `take` took the last one
            for token_id in generated_ids[self._num_accepted :].tolist():
                if token_id == self._end or not inner.consume_token(token_id):
                    self._refuse(token_id)
                self._num_accepted += 1
                if forced:
                    self.forced = forced = forced[1:] if forced[0] == token_id else ()
        return None if forced else inner

    def _refuse(self, token_id: int) -> NoReturn:
        self._check_limits()
        raise ValueError(f"the grammar does not allow token {token_id} after {self._num_accepted} tokens")

    def finish(self, words: Words) -> bool:
        """Complete the mask of the next token, int32 [words of the table]. Returns whether it forbids any. Raises
        `RequestError` where the grammar takes too much."""
        if self.forced:
            return allow_only(words, self.forced[:1])
        inner = self._inner
        if inner.is_error():
            self._check_limits()
        if self._forces and not self._table.leaves_choice(words) and (found := inner.compute_ff_tokens()):
            self.forced = tuple(found[:_MAX_FORCED])
            return allow_only(words, self.forced[:1])
        if words.item(self._end_word) & self._end_bit:  # the answer is complete
            set_bits(words, (self._end,), allowed=False)
            set_bits(words, self._stop_token_ids, allowed=True)
        return True

    def _check_limits(self) -> None:
        """Raise `RequestError` where the grammar takes too much; a token that it does not allow is another error."""
        error = self._inner.get_error() if self._inner.is_error() else ""
        if not error or any(words in error for words in _NOT_ALLOWED):
            return
        self._on_error()
        why = explain(error)
        raise RequestError(ErrorCode.INVALID_REQUEST, f"response_format: {TOO_AMBIGUOUS}: {why}", "response_format")


_WORD = (1 << 32) - 1


def allow_only(words: Words, token_ids: Sequence[int]) -> bool:
    """Forbid all other tokens. Returns true."""
    words[:] = 0
    set_bits(words, token_ids, allowed=True)
    return True


def set_bits(words: Words, token_ids: Sequence[int], *, allowed: bool) -> None:
    """Allow or forbid tokens in one row of a mask."""
    num_tokens = 32 * len(words)
    for token_id in token_ids:
        if token_id < num_tokens:
            place, bit = token_id >> 5, 1 << (token_id & 31)
            word = words.item(place) & _WORD
            word = word | bit if allowed else word & ~bit
            words[place] = word - (word >> 31 << 32)

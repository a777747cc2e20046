"""The mask of a row takes away what its options ban, so that the sampler only has to look at the mask."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from seesay.engine.core.grammars.row_matcher import RowMatcher
from seesay.errors import RequestError
from seesay.grammars.bad_words import BadWords, BadWordsMatcher, TokenSpellings
from seesay.llm.plans.sampling_params import SamplingParams

VOCAB = 77
END = 5
SIZES = [31, 32, 33, 64, 77]
"""Numbers of tokens that fill their last word of a mask, and that do not."""


class _Allows:
    """A rule that allows some tokens; without any, it forbids none, and leaves in the mask what was there."""

    is_over, forced = False, (7, 8)

    def __init__(self, *token_ids: int) -> None:
        self._token_ids = token_ids
        self.followed: list[list[int]] = []

    def follow(self, generated_ids: Any) -> Any:
        self.followed.append(generated_ids.tolist())
        return "filled by this"

    def finish(self, words: np.ndarray) -> bool:
        if not self._token_ids:
            return False
        words[:] = 0
        for token_id in self._token_ids:
            words.view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)
        return True

    def fork(self) -> _Allows:
        return _Allows(*self._token_ids)

    def take(self, token_id: int, num_generated: int) -> tuple[Any, int]:
        return f"behind {num_generated}", token_id

    def may_forbid(self, num_generated: int) -> bool:
        return num_generated > 3


class _IsOver(_Allows):
    is_over = True


def make(
    rule: Any = None,
    *,
    words: Any = None,
    prompt: Iterable[int] = (0, 1, 2),
    vocab_size: int = VOCAB,
    has_grammar: bool = True,
    **options: Any,
) -> RowMatcher:
    return RowMatcher(
        rule=rule,
        words=words,
        params=SamplingParams(**{"eos_token_ids": (END,), **options}),
        has_grammar=has_grammar,
        prompt_ids=np.array([*prompt], np.int64),
        vocab_size=vocab_size,
    )


def read(matcher: RowMatcher, generated: Iterable[int] = (), vocab_size: int = VOCAB) -> list[int] | None:
    """Return the tokens that may come next; None where all may."""
    matcher.follow(np.array([*generated], np.int64))
    mask = np.full(vocab_size // 32 + 1, 0x15151515, np.int32)
    if not matcher.finish(mask):
        return None
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:vocab_size]
    return np.flatnonzero(bits).tolist()


def read_mask(rule: Any, num_generated: int, **options: Any) -> list[int] | None:
    return read(make(rule, **options), range(num_generated))


def test_a_mask_takes_away_what_options_ban() -> None:
    rule = _Allows(2, END, 40, 70)
    assert read_mask(rule, 0) == [2, END, 40, 70]
    assert read_mask(rule, 3, min_new_tokens=4) == [2, 40, 70]
    assert read_mask(rule, 4, min_new_tokens=4) == [2, END, 40, 70]
    assert read_mask(rule, 3, min_new_tokens=4, bad_token_ids=(70, 2, 1 << 40)) == [40]
    assert read_mask(rule, 0, allowed_token_ids=(40, 70, 6), bad_token_ids=(70,)) == [40]


def test_tokens_are_banned_wherever_they_are() -> None:
    assert read(make(_Allows(2, 40, 63), bad_token_ids=tuple(range(32, 64)))) == [2]
    assert read(make(_Allows(2, 40, 70), bad_token_ids=(2, 40))) == [70]


def test_what_is_banned_changes_while_a_text_grows() -> None:
    matcher = make(_Allows(2, END), min_new_tokens=2, bad_token_ids=(3,))
    assert [read(matcher, range(num_generated)) for num_generated in range(4)] == [[2], [2], [2, END], [2, END]]


def test_a_rule_that_forbids_nothing_needs_no_mask() -> None:
    assert read(make(_Allows())) is None and read(make(_Allows(), bad_token_ids=(4,))) is None
    assert read(make(None, no_repeat_ngram_size=2)) is None, "the sampler finds these"


@pytest.mark.parametrize("rule", [None, _Allows()])
def test_beside_such_a_rule_options_are_masks(rule: Any) -> None:
    assert read(make(rule, allowed_token_ids=(0, 31, 32, 76), bad_token_ids=(32,))) == [0, 31, 76]
    assert read(make(rule, no_repeat_ngram_size=1)) == [*range(3, VOCAB)]


@pytest.mark.parametrize("vocab_size", SIZES)
def test_the_only_token_that_is_left_is_found_wherever_it_is(vocab_size: int) -> None:
    for token_id in range(vocab_size):
        prompt = [other for other in range(vocab_size) if other != token_id]
        assert read(make(prompt=prompt, no_repeat_ngram_size=1, vocab_size=vocab_size), (), vocab_size) == [token_id]


@pytest.mark.parametrize("vocab_size", SIZES)
def test_where_no_token_of_the_vocabulary_is_left_that_is_said(vocab_size: int) -> None:
    """A mask has bits behind the vocabulary, which are no tokens."""
    matcher = make(prompt=range(vocab_size), no_repeat_ngram_size=1, vocab_size=vocab_size)
    with pytest.raises(RequestError, match="no_repeat_ngram_size forbids every token"):
        read(matcher, (), vocab_size)
    matcher = make(_Allows(3, vocab_size), bad_token_ids=(3, vocab_size), vocab_size=vocab_size)
    with pytest.raises(RequestError, match="bad_token_ids forbid every token that response_format allows"):
        read(matcher, (), vocab_size)


@pytest.mark.parametrize("vocab_size", SIZES)
def test_tokens_behind_the_vocabulary_are_ignored(vocab_size: int) -> None:
    options: dict[str, Any] = {
        "bad_token_ids": (2, vocab_size, 1 << 40),
        "allowed_token_ids": (1, 2, vocab_size, 1 << 40),
    }
    assert read(make(vocab_size=vocab_size, **options), (), vocab_size) == [1]


def test_an_error_names_what_forbids_all_together() -> None:
    with pytest.raises(
        RequestError, match=r"^bad_token_ids and min_new_tokens forbid every token that response_format"
    ):
        read_mask(_Allows(2, END), 0, min_new_tokens=1, bad_token_ids=(2,))
    with pytest.raises(
        RequestError, match=r"^bad_token_ids and min_new_tokens forbid every token that response_format"
    ):
        read_mask(_Allows(END, 70), 0, min_new_tokens=1, bad_token_ids=(70,))
    with pytest.raises(RequestError, match=r"^allowed_token_ids and bad_token_ids forbid every token behind"):
        read(make(allowed_token_ids=(3,), bad_token_ids=(3,)))
    with pytest.raises(RequestError, match=r"^the answer that response_format allows ends after 1 tokens"):
        read_mask(_Allows(END), 1, min_new_tokens=3, bad_token_ids=(2,))


def test_an_error_names_no_option_without_which_all_is_forbidden_too() -> None:
    with pytest.raises(RequestError, match=r"^allowed_token_ids and bad_token_ids forbid every token behind"):
        read(make(_Allows(3, 4), prompt=[3], allowed_token_ids=(3,), bad_token_ids=(3, END), no_repeat_ngram_size=1))
    with pytest.raises(RequestError, match=r"^bad_token_ids forbid every token that response_format allows"):
        read(make(_Allows(3), bad_token_ids=(3,), allowed_token_ids=(3, 4), min_new_tokens=2))


def test_an_error_names_the_limit_of_a_thought() -> None:
    with pytest.raises(RequestError, match=r"^max_thinking_tokens and bad_token_ids forbid every token behind"):
        read(make(_Allows(3), has_grammar=False, bad_token_ids=(3,)))


def test_ends_of_an_answer_are_held_back_no_longer_than_asked_for() -> None:
    allowed: dict[str, Any] = {"allowed_token_ids": (END, 3), "bad_token_ids": (3,), "min_new_tokens": 2}
    assert read(make(**allowed), (8, 9)) == [END]
    with pytest.raises(RequestError, match=r"^allowed_token_ids and bad_token_ids and min_new_tokens forbid"):
        read(make(**allowed), (8,))


def test_tokens_that_would_repeat_are_looked_for_in_prompt_and_answer() -> None:
    rule = _Allows(*range(20, 30))
    options: dict[str, Any] = {"prompt": [20, 21, 22, 20, 23], "no_repeat_ngram_size": 2}
    assert read(make(rule, **options), [24, 20]) == [20, 22, *range(24, 30)]
    assert read(make(rule, ngram_window=5, **options), [24, 20]) == [20, 21, 22, *range(24, 30)]
    assert read(make(rule, whitelist_token_ids=(23,), **options), [24, 20]) == [20, 22, *range(23, 30)]


@pytest.fixture
def words() -> BadWordsMatcher:
    """Forbids 'ab' in the text of tokens that are the letters from 'a'."""
    return BadWordsMatcher(BadWords(["ab"], TokenSpellings([bytes([97 + token_id]) for token_id in range(VOCAB)])))


def test_bad_words_are_followed_through_the_answer(words: BadWordsMatcher) -> None:
    matcher = make(_Allows(0, 1, 2), words=words, bad_words=("ab",))
    assert [read(matcher, generated) for generated in ([], [0], [0, 2])] == [[0, 1, 2], [0, 2], [0, 1, 2]]
    with pytest.raises(RequestError, match=r"^bad_words forbid every token that response_format allows"):
        read(make(_Allows(1), words=words, bad_words=("ab",)), [0, 2, 0])


def test_a_copy_follows_other_tokens(words: BadWordsMatcher) -> None:
    rule = _Allows(0, 1, 2)
    matcher = make(rule, words=words, bad_words=("ab",))
    read(matcher, [2])
    copied = matcher.fork()
    assert read(copied, [2, 0]) == [0, 2] and read(matcher, [2, 2]) == [0, 1, 2]
    assert read(copied, [2, 0, 2]) == [0, 1, 2] and rule.followed == [[2], [2, 2]]
    assert read(make(allowed_token_ids=(3,)).fork()) == [3], "neither a rule nor words"


def test_the_rule_takes_tokens_and_says_what_fills_a_mask() -> None:
    matcher = make(_Allows(1))
    assert matcher.take(11, 4) == ("behind 4", 11) and matcher.forced == (7, 8)
    assert matcher.follow(np.array([3, 4])) == "filled by this"
    alone = make(allowed_token_ids=(3,))
    assert alone.take(11, 4) is None and alone.forced == () and alone.follow(np.array([3, 4])) is None


@pytest.mark.parametrize(
    ("rule", "options", "is_over", "may_forbid"),
    [
        (None, {"allowed_token_ids": (3,)}, False, [True, True]),
        (_IsOver(), {"allowed_token_ids": (3,)}, False, [True, True]),
        (None, {"no_repeat_ngram_size": 2}, True, [False, False]),
        (_Allows(), {}, False, [False, True]),
        (_IsOver(), {}, True, [False, True]),
    ],
)
def test_masks_may_be_needed_until_the_rule_is_over(
    rule: Any, options: dict[str, Any], is_over: bool, may_forbid: list[bool]
) -> None:
    matcher = make(rule, **options)
    assert matcher.is_over == is_over and [matcher.may_forbid(num) for num in (3, 4)] == may_forbid

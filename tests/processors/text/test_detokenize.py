from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from cpu_time import check_cpu_s, measure_cpu_s
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pairs import num_examples

from seesay.processors.text.detokenize import IncrementalDetokenizer
from seesay.processors.text.tokenizer import Tokenizer

NAMES = ["byte_level", "byte_fallback", "unigram", "word_piece"]
QUICK = settings(
    max_examples=num_examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
BYTE_LEVEL_TEXT = "Le café 😀 dog 日本語"


@pytest.fixture(params=NAMES)
def tokenizer(request: pytest.FixtureRequest, tokenizer_named: Callable[[str], Tokenizer]) -> Any:
    return tokenizer_named(request.param)


def run(tokenizer: Any, chunks: Any, **options: Any) -> tuple[list[str], str | None]:
    detokenizer = IncrementalDetokenizer(tokenizer, **options)
    texts = [detokenizer.push(chunk).text for chunk in chunks]
    return [*texts, detokenizer.flush()], detokenizer.stop


def split(ids: list[int], cuts: list[int]) -> list[list[int]]:
    borders = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [ids[a:b] for a, b in itertools.pairwise(borders)]


def ids_of(tokenizer: Any, numbers: list[int]) -> list[int]:
    """Any ids, bytes and special ones often, unknown ones too."""
    favourites = [i for i in range(tokenizer.vocab_size) if (tokenizer.backend.id_to_token(i) or "").startswith("<")]
    return [
        favourites[n // 2 % len(favourites)] if n % 2 and favourites else n // 2 % (tokenizer.vocab_size + 2)
        for n in numbers
    ]


NUMBERS = st.lists(st.integers(0, 1 << 16), max_size=40)
CUTS = st.lists(st.integers(0, 100), max_size=10)


@QUICK
@given(numbers=NUMBERS, cuts=CUTS, skip=st.booleans())
def test_pieces_together_are_the_whole(tokenizer: Any, numbers: Any, cuts: Any, skip: Any) -> None:
    ids = ids_of(tokenizer, numbers)
    pieces, stop = run(tokenizer, split(ids, cuts), skip_special_tokens=skip)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)
    assert stop is None


@QUICK
@given(text=st.text(alphabet="the dogfx é😀猫\n▁<", max_size=30), cuts=CUTS)
def test_real_text(tokenizer: Any, text: Any, cuts: Any) -> None:
    ids = tokenizer.encode(text)
    assert "".join(run(tokenizer, split(ids, cuts))[0]) == tokenizer.decode(ids)
    # Nothing broken is given out on the way.
    if "\ufffd" not in tokenizer.decode(ids):
        assert "\ufffd" not in "".join(run(tokenizer, [[i] for i in ids])[0])


def first_end(text: str, words: list[str], least: int = 1) -> tuple[int, str] | None:
    """Where the word that is complete first, though not before character `least`, ends; the longest of several."""
    for end in range(least, len(text) + 1):
        found = [word for word in words if text[:end].endswith(word)]
        if found:
            return end, max(found, key=len)
    return None


@QUICK
@given(
    numbers=NUMBERS,
    cuts=CUTS,
    words=st.lists(st.text("aetdo x�<>0", min_size=1, max_size=4), max_size=4),
    data=st.data(),
)
def test_stop_words(tokenizer: Any, numbers: Any, cuts: Any, words: Any, data: Any) -> None:
    ids = [i for i in ids_of(tokenizer, numbers) if i not in tokenizer.special_ids]
    whole = tokenizer.decode(ids)
    if whole:
        start = data.draw(st.integers(0, len(whole) - 1))
        words = [*words, whole[start : start + data.draw(st.integers(1, 6))]]
    include = data.draw(st.booleans())
    pieces, stop = run(tokenizer, split(ids, cuts), stop_words=words, include_stop_str=include)
    end = first_end(whole, words)
    if end is None:
        assert stop is None and "".join(pieces) == whole
    else:
        position, word = end
        assert stop == word and "".join(pieces) == whole[: position if include else position - len(word)]


@QUICK
@given(
    numbers=NUMBERS,
    cuts=CUTS,
    words=st.lists(st.text("aetdo x", min_size=1, max_size=3), min_size=1, max_size=4),
    min_tokens=st.integers(0, 6),
)
def test_stop_words_that_the_first_tokens_complete_are_text(
    tokenizer: Any, numbers: Any, cuts: Any, words: Any, min_tokens: Any
) -> None:
    ids = [i for i in ids_of(tokenizer, numbers) if i not in tokenizer.special_ids]
    whole = tokenizer.decode(ids)
    known = len(IncrementalDetokenizer(tokenizer).push(ids[:min_tokens]).text)
    pieces, stop = run(tokenizer, split(ids, cuts), stop_words=words, min_tokens=min_tokens)
    end = first_end(whole, words, known + 1) if len(ids) > min_tokens else None
    if end is None:
        assert stop is None and "".join(pieces) == whole
    else:
        assert stop == end[1] and "".join(pieces) == whole[: end[0] - len(end[1])]


def test_a_special_stop_word_among_the_first_tokens(tokenizer_named: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_named("byte_level")
    ids = tokenizer.encode("a<|im_end|>b<|im_end|>c")
    pieces, stop = run(tokenizer, [ids], stop_words=["<|im_end|>"], min_tokens=2)
    assert ("".join(pieces), stop) == ("ab", "<|im_end|>")


def test_characters_wait_for_their_last_byte(tokenizer_named: Callable[[str], Tokenizer]) -> None:
    for name in ("byte_level", "byte_fallback"):
        tokenizer = tokenizer_named(name)
        ids = tokenizer.encode(BYTE_LEVEL_TEXT)
        pieces, _ = run(tokenizer, [[i] for i in ids])
        assert "".join(pieces) == BYTE_LEVEL_TEXT and "\ufffd" not in "".join(pieces)
        assert sum(map(bool, pieces)) > 8


def test_text_goes_out_at_once(tokenizer_named: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_named("byte_level")
    detokenizer = IncrementalDetokenizer(tokenizer, stop_words=["\nUSER"])
    for token_id in tokenizer.encode("the quick brown fox"):
        assert detokenizer.push([token_id]).text == tokenizer.decode([token_id])
    assert detokenizer.push(tokenizer.encode("\n")).text == ""
    assert detokenizer.push(tokenizer.encode("U")).text == ""
    assert detokenizer.push(tokenizer.encode("x")).text == "\nUx"
    assert detokenizer.push(tokenizer.encode("a\nUS")).text == "a"
    assert detokenizer.flush() == "\nUS"


def test_after_a_stop_there_is_nothing(tokenizer_named: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_named("byte_level")
    detokenizer = IncrementalDetokenizer(tokenizer, stop_words=["dog"])
    delta = detokenizer.push(tokenizer.encode("the dog sleeps"))
    assert (delta.text, delta.stop) == ("the ", "dog")
    delta = detokenizer.push(tokenizer.encode("more"))
    assert (delta.text, delta.stop) == ("", "dog")
    assert detokenizer.flush() == "" and detokenizer.stop == "dog"


def test_a_skipped_special_token_may_be_a_stop_word(tokenizer_named: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_named("byte_level")
    ids = tokenizer.encode("the d<|im_start|>o<|im_end|>g")
    for include, expected in ((False, "the do"), (True, "the do<|im_end|>")):
        pieces, stop = run(tokenizer, [ids], stop_words=["<|im_end|>", "dog"], include_stop_str=include)
        assert ("".join(pieces), stop) == (expected, "<|im_end|>")


def test_some_special_tokens_may_stay(tokenizer_named: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_named("byte_level")
    ids = tokenizer.encode("the d<|im_start|>o<|im_end|>g")
    for cuts in range(len(ids)):
        pieces, _ = run(tokenizer, [ids[:cuts], ids[cuts:]], kept_tokens=["<|im_start|>", "no token"])
        assert "".join(pieces) == "the d<|im_start|>og"
    pieces, stop = run(tokenizer, [ids], kept_tokens=["<|im_end|>"], stop_words=["<|im_end|>"])
    assert ("".join(pieces), stop) == ("the do", "<|im_end|>")


def test_blanks_between_added_tokens(tokenizer_named: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_named("word_piece")
    ids = [tokenizer.token_id(token) for token in ("a", "[CLS]", "[SEP]", "b", "[SEP]", "[SEP]", "##c")]
    options = {"skip_special_tokens": False}
    assert "".join(run(tokenizer, [ids], **options)[0]) == "a [CLS] [SEP] b [SEP] [SEP]c"
    joined, _ = run(tokenizer, [ids], **options, spaces_between_special_tokens=False)
    assert "".join(joined) == "a [CLS][SEP] b [SEP][SEP]c"


def test_constant_time_per_token(tokenizer_named: Callable[[str], Tokenizer]) -> None:
    for name in ("byte_level", "unigram"):
        tokenizer = tokenizer_named(name)
        ids = tokenizer.encode("the dog sleeps, the fox runs. ") * 50
        detokenizer = IncrementalDetokenizer(tokenizer, stop_words=["never", "the cat", "\n\n\n"])

        def push_all(ids: list[int] = ids, detokenizer: IncrementalDetokenizer = detokenizer) -> None:
            for token_id in ids:
                detokenizer.push([token_id])

        early_s = measure_cpu_s(push_all)
        detokenizer.push(ids * 50)
        check_cpu_s(push_all, 3 * early_s)  # a token costs no more after a long text

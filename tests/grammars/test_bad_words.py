"""Forbidden words: a mask forbids exactly the tokens that would complete one, however texts are cut into tokens."""

from __future__ import annotations

import random

import numpy as np
import pytest

from seesay.grammars.bad_words import BadWords, BadWordsMatcher, TokenSpellings

ALPHABETS = ("ab", "aé", "ab \n", "a猫\U0001f600")


def make_vocabulary(alphabet: str, chance: random.Random) -> list[bytes]:
    """Tokens of several characters, of single bytes, of broken characters, and without text, in any order."""
    texts = ["".join(chance.choices(alphabet, k=chance.randint(1, 5))).encode() for _ in range(60)]
    pieces = [text[chance.randrange(len(text)) :][: chance.randint(1, 4)] for text in texts]
    tokens = [*texts, *pieces, *(bytes([byte]) for byte in set("".join(alphabet).encode())), b"", b""]
    chance.shuffle(tokens)
    return tokens


def allowed_tokens(bits: np.ndarray, count: int) -> list[bool]:
    is_allowed: list[bool] = np.unpackbits(bits.view(np.uint8), bitorder="little")[:count].astype(bool).tolist()
    return is_allowed


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_exactly_the_tokens_that_complete_a_word_are_forbidden(alphabet: str) -> None:
    chance = random.Random(alphabet)
    for _ in range(40):
        tokens = make_vocabulary(alphabet, chance)
        lengths = [chance.choice((1, 2, 3, 4, 9)) for _ in range(chance.randint(1, 6))]
        words = ["".join(chance.choices(alphabet, k=length)) for length in lengths]
        words += [words[0] + words[-1], words[-1]]  # one inside of another, and one twice
        matcher = BadWordsMatcher(BadWords(words, TokenSpellings(tokens)))
        generated: list[int] = []
        text = b""
        for _ in range(30):
            bits = np.full(-(-len(tokens) // 32), -1, np.int32)
            matcher.forbid(np.array(generated, np.int64), bits)
            expected = [not any(word.encode() in text + token for word in words) for token in tokens]
            assert allowed_tokens(bits, len(tokens)) == expected, (words, text)
            open_ids = [token_id for token_id, is_allowed in enumerate(expected) if is_allowed]
            # Several tokens at a time, as after a preemption.
            token_id = max(chance.sample(open_ids, min(3, len(open_ids))), key=lambda i: len(tokens[i]))
            generated.append(token_id)
            text += tokens[token_id]


def test_a_matcher_may_begin_behind_tokens_and_allows_only_what_its_mask_did() -> None:
    tokens = [b"a", b"b", b"ab", b"c"]
    words = BadWords(["abc"], TokenSpellings(tokens))
    for generated in ([0, 1], [2], [3, 0, 1]):
        bits = np.array([0b1011], np.int32)
        BadWordsMatcher(words).forbid(np.array(generated), bits)
        assert bits[0] == 0b0011, "what the mask forbade stays forbidden"


def test_tokens_are_found_by_their_beginnings() -> None:
    tokens = [b"\xff\xff", b"", b"\xff", b"\xfe\xff", b"\xfe", b"a", b"ab", b"b", b"a\xff"]
    spellings = TokenSpellings(tokens)
    for beginning in (b"\xff", b"\xff\xff", b"\xfe\xff", b"\xfe", b"a", b"a\xff", b"c"):
        expected = {index for index, token in enumerate(tokens) if token.startswith(beginning)}
        assert set(spellings.find(beginning).tolist()) == expected

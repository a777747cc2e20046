"""Forced tokens spell text that the grammar leaves no choice about, and end where a token could go on behind it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from seesay.demo import CHECKPOINT
from seesay.grammars.compile import compile_program, make_compiler
from seesay.grammars.masks import Matcher
from seesay.grammars.vocabulary import Vocabulary
from seesay.processors.text.tokenizer import Tokenizer

END = 0
WORDS = ["name", "ab", "abc", '": ', '"name', "12", " the", "é"]
TOKENS = [b"\xff<end>", *(bytes([byte]) for byte in range(1, 256)), *(word.encode() for word in WORDS)]
SCHEMA = {
    "type": "object",
    "properties": {
        "invoice_number": {"type": "integer", "minimum": 0, "maximum": 999},
        "customer": {"type": "string", "maxLength": 5},
        "items": {"type": "array", "items": {"enum": ["apple", "apricot", "äpple"]}, "minItems": 1, "maxItems": 2},
        "paid": {"type": "boolean"},
        "note": {"const": "größe: ünique"},
    },
    "required": ["invoice_number", "items", "note"],
}


def encode(text: str) -> list[int]:
    """The longest token at each place."""
    data, token_ids = text.encode(), list[int]()
    while data:
        token_ids.append(max(range(1, len(TOKENS)), key=lambda i: len(TOKENS[i]) * data.startswith(TOKENS[i])))
        data = data[len(TOKENS[token_ids[-1]]) :]
    return token_ids


def make_mask(matcher: Matcher, token_ids: Sequence[int], num_tokens: int) -> set[int]:
    bits = np.full((1, -(-num_tokens // 32)), -1, np.int32)
    matcher.fill(np.array(token_ids, dtype=np.int64), bits, 0)
    return set(np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:num_tokens]).tolist())


def find(regex: str, written: str = "", spell: Callable[[str], Sequence[int]] = encode) -> bytes:
    """The text of the tokens that are forced behind `written`."""
    compiled = compile_program(make_compiler(TOKENS, num_threads=1), "regex", regex)
    matcher = Matcher(compiled, [END], Vocabulary(TOKENS, spell))
    make_mask(matcher, encode(written), len(TOKENS))
    return b"".join(TOKENS[token_id] for token_id in matcher.find_forced())


@pytest.mark.parametrize(
    ("regex", "written", "forced"),
    [
        ("xyz", "", "xyz"),
        ("xyz", "x", "yz"),
        ("xyz", "xy", ""),  # one token is left to the model
        ("xyz", "xyz", ""),
        ("(xyz)?", "", ""),  # the answer may end here
        ("xyz?", "", "xy"),
        ("xyza", "", "xyza"),
        ("xyza[0-9]", "", "xyza"),
        ("xyzab?", "", "xyz"),  # ab is a token
        ("xyza(b|c)", "", "xyz"),
        ("xyz1[3-9]", "", "xyz1"),
        ("xyz1[2-9]", "", "xyz"),
        ("xyz (sea|[1-9])", "", "xyz "),
        ("xyz (the|[1-9])", "", "xyz"),
        ('"name": [1-9]', "", '"name": '),
        ('"name": [1-9]', '"', 'name": '),  # as the text is cut that is left
        ("xyé", "", "xyé"),
        ("xy(é|è)", "", "xy"),  # the first byte is forced, too
        ("xäy(ä|ö)", "", "xäy"),
    ],
)
def test_text_is_forced_up_to_a_token_that_may_go_on(regex: str, written: str, forced: str) -> None:
    assert find(regex, written) == forced.encode()


def test_a_tokenizer_that_puts_a_space_before_texts_forces_the_same() -> None:
    def with_space(text: str) -> list[int]:
        return encode(" " + text)

    def glued(text: str) -> list[int]:  # the space and the first character are one token
        return [len(TOKENS), *encode(text[1:])] if text[0] == "x" else encode(" " + text)

    for spell in (with_space, glued):
        assert find("xyz[0-9]", spell=spell) == b"xyz"
    assert find("xyz[0-9]", spell=lambda text: encode(text.upper())) == b""
    assert find("xyz[0-9]", spell=lambda text: []) == b""


def test_a_stop_token_of_the_request_is_not_forced() -> None:
    compiled = compile_program(make_compiler(TOKENS, num_threads=1), "regex", "xyz[0-9]")
    for stop_ids, forced in (([END], "xyz"), ([END, ord("z")], "")):
        matcher = Matcher(compiled, stop_ids, Vocabulary(TOKENS, encode))
        make_mask(matcher, [], len(TOKENS))
        assert b"".join(TOKENS[token_id] for token_id in matcher.find_forced()) == forced.encode()


def test_a_long_text_is_forced_piece_by_piece() -> None:
    text = "größer " * 1000
    compiled = compile_program(make_compiler(TOKENS, num_threads=1), "json_schema", json.dumps({"const": text}))
    matcher, token_ids, sizes = Matcher(compiled, [END], Vocabulary(TOKENS, encode)), list[int](), list[int]()
    while make_mask(matcher, token_ids, len(TOKENS)) != {END}:
        forced = matcher.find_forced()
        assert len(forced) >= 2
        sizes.append(len(forced))
        token_ids += forced
    assert b"".join(map(TOKENS.__getitem__, token_ids)).decode() == f'"{text}"'
    assert max(sizes) <= 1024 and len(sizes) < 20


@pytest.mark.parametrize("kind", ["twice as long, and twice as that", "without an end"])
def test_only_the_beginning_of_a_huge_text_is_looked_for(kind: str) -> None:
    """Neither time nor memory are those of the whole text."""
    if kind == "without an end":
        endless = {"type": "object", "properties": {"ab": {"$ref": "#"}}, "required": ["ab"]}
        compiled = compile_program(make_compiler(TOKENS, num_threads=1), "json_schema", json.dumps(endless))
    else:
        rules = [f"r{number} ::= r{number + 1} r{number + 1}" for number in range(40)]
        source = "\n".join(["root ::= r0", *rules, 'r40 ::= "xyz"'])
        compiled = compile_program(make_compiler(TOKENS, num_threads=1), "ebnf", source)
    matcher, token_ids = Matcher(compiled, [END], Vocabulary(TOKENS, encode)), list[int]()
    for _ in range(4):
        make_mask(matcher, token_ids, len(TOKENS))
        forced = matcher.find_forced()
        assert 100 < len(forced) <= 1024
        token_ids += forced
    text = b"".join(map(TOKENS.__getitem__, token_ids)).decode()
    assert text == ('{"ab": ' * 1000 if kind == "without an end" else "xyz" * 2000)[: len(text)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(CHECKPOINT)


@pytest.mark.parametrize("takes_all", [True, False], ids=["together", "one by one"])
def test_nothing_is_forced_but_what_every_answer_has(tokenizer: Tokenizer, takes_all: bool) -> None:
    """Answers drawn at random. Whatever the grammar allows where text is forced begins as that does, and no allowed
    token goes on behind it; a look at what is forced changes no mask."""
    size = len(tokenizer.hf)
    tokens = tokenizer.spell_tokens(size)
    compiled = compile_program(make_compiler(tokens, num_threads=1), "json_schema", json.dumps(SCHEMA))
    vocabulary, rng, num_forced = Vocabulary(tokens, tokenizer.encode), random.Random(1), 0
    end = tokenizer.eos_token_id or size - 1
    for _ in range(12):
        forcing, plain, token_ids = Matcher(compiled, [end], vocabulary), Matcher(compiled, [end]), list[int]()
        expected: tuple[int, ...] = ()
        while end not in token_ids:
            allowed = make_mask(forcing, token_ids, size)
            forced = forcing.find_forced()
            assert make_mask(plain, token_ids, size) == allowed == make_mask(forcing, token_ids, size)
            assert forcing.find_forced() == forced and (not expected or forced == expected)
            if not forced:
                token_ids.append(rng.choice(sorted(allowed)))
                continue
            num_forced += 1
            check_forced(compiled, tokens, end, token_ids, forced)
            taken = forced if takes_all else forced[:1]
            token_ids += taken
            expected = forced[len(taken) :]
        answer = json.loads(b"".join(map(tokens.__getitem__, token_ids[:-1])))
        assert answer["note"] == SCHEMA["properties"]["note"]["const"]  # type: ignore[index]
    assert num_forced > 40


def check_forced(compiled: Any, tokens: Sequence[bytes], end: int, known: Sequence[int], forced: Sequence[int]) -> None:
    text = b"".join(map(tokens.__getitem__, forced))
    for place in range(len(text)):
        by_byte = [tokens.index(bytes([byte])) for byte in text[:place]]
        for token_id in make_mask(Matcher(compiled, [end]), [*known, *by_byte], len(tokens)):
            assert token_id != end
            left = text[place:]
            assert left.startswith(tokens[token_id]), (text, place, tokens[token_id])


def test_names_are_cut_once(tokenizer: Tokenizer) -> None:
    calls: list[str] = []

    def spell(text: str) -> list[int]:
        calls.append(text)
        return tokenizer.encode(text)

    vocabulary = Vocabulary(tokenizer.spell_tokens(len(tokenizer.hf)), spell)
    assert vocabulary.cut(b'"name": ') is vocabulary.cut(b'"name": ')
    assert calls == ['"name": ']

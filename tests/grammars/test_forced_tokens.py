"""Forced tokens spell text that the grammar leaves no choice about, and end where a token could go on behind it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from seesay.config.grammar import Grammar
from seesay.demo import CHECKPOINT
from seesay.grammars.compile import TokenTable, compile_program
from seesay.grammars.masks import MaskRow, MaskThreads
from seesay.grammars.matcher import Matcher
from seesay.grammars.program import make_program
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
    row = MaskRow(matcher, np.array(token_ids, dtype=np.int64))
    bits = MaskThreads().fill([row], num_tokens)
    assert row.error is None, row.error
    return set(np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:num_tokens]).tolist())


def open_matcher(
    kind: str, source: str, spell: Callable[[str], Sequence[int]] = encode, *, forces: bool = True
) -> Matcher:
    table = TokenTable(TOKENS, spell)
    program = make_program(Grammar(kind=kind, source=source))
    return Matcher(compile_program(table, program.source, forces=forces), table, [END], forces=forces)


def find(regex: str, written: str = "", spell: Callable[[str], Sequence[int]] = encode) -> bytes:
    """The text of the tokens that are forced behind `written`."""
    matcher = open_matcher("regex", regex, spell)
    make_mask(matcher, encode(written), len(TOKENS))
    return b"".join(TOKENS[token_id] for token_id in matcher.forced)


@pytest.mark.parametrize(
    ("regex", "written", "forced"),
    [
        ("xyz", "", "xyz"),
        ("xyz", "x", "yz"),
        ("xyz", "xy", "z"),
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
        ("xäy(ä|ö)", "", "xäy\udcc3"),  # with the byte that both begin with
    ],
)
def test_text_is_forced_up_to_a_token_that_may_go_on(regex: str, written: str, forced: str) -> None:
    assert find(regex, written) == forced.encode("utf-8", "surrogateescape")


def test_a_tokenizer_that_puts_a_space_before_texts_forces_the_same() -> None:
    def with_space(text: str) -> list[int]:
        return encode(" " + text)

    def glued(text: str) -> list[int]:  # the space and the first character are one token
        return [len(TOKENS), *encode(text[1:])] if text[0] == "x" else encode(" " + text)

    for spell in (with_space, glued):
        assert find("xyz[0-9]", spell=spell) == b"xyz"
    for spell in (lambda text: encode(text.upper()), lambda text: []):  # the longest tokens are taken instead
        assert find("xyz[0-9]", spell=spell) == b"xyz"


def test_nothing_is_forced_where_it_must_not_be() -> None:
    matcher = open_matcher("regex", "name", forces=False)
    allowed = make_mask(matcher, [], len(TOKENS))
    assert matcher.forced == () and {TOKENS.index(b"n"), TOKENS.index(b"name")} <= allowed


def test_a_long_text_is_forced_piece_by_piece() -> None:
    text = "größer " * 500
    matcher, token_ids, sizes = open_matcher("json_schema", json.dumps({"const": text})), list[int](), list[int]()
    while make_mask(matcher, token_ids, len(TOKENS)) != {END}:
        assert matcher.forced
        sizes.append(len(matcher.forced))
        token_ids += matcher.forced
    assert b"".join(map(TOKENS.__getitem__, token_ids)).decode() == f'"{text}"'
    assert max(sizes) <= 256


def test_only_the_beginning_of_a_huge_text_is_looked_for() -> None:
    """Neither time nor memory are those of the whole text."""
    matcher = open_matcher("regex", "x{10000}y{10000}")
    token_ids = list[int]()
    for _ in range(4):
        make_mask(matcher, token_ids, len(TOKENS))
        assert 0 < len(matcher.forced) <= 256
        token_ids += matcher.forced
    assert b"".join(map(TOKENS.__getitem__, token_ids)) == b"x" * 1024


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(CHECKPOINT)


def test_a_forced_text_that_comes_again_is_not_cut_again() -> None:
    """As fields of each item, and of each answer; a long one is, which would take much memory."""
    cut = list[str]()

    def note(text: str) -> Sequence[int]:
        cut.append(text)
        return encode(text)

    table = TokenTable(TOKENS, note)
    for text in ("xyz", b"xyz", "xyz"):
        assert table(text) == encode("xyz")
    assert cut == ["xyz"]
    for _ in range(2):
        assert table("xy" * 200) == encode("xy" * 200)
    assert len(cut) == 3


@pytest.mark.parametrize("takes_all", [True, False], ids=["together", "one by one"])
def test_nothing_is_forced_but_what_every_answer_has(tokenizer: Tokenizer, takes_all: bool) -> None:
    """Answers drawn at random. Whatever the grammar allows where text is forced begins as that does, and no allowed
    token goes on behind it; a look at what is forced changes no mask."""
    size = len(tokenizer.hf)
    tokens = tokenizer.spelling.spell_all(size)
    table = TokenTable(tokens, tokenizer.encode)
    program = make_program(Grammar(kind="json_schema", source=json.dumps(SCHEMA)))
    compiled = {forces: compile_program(table, program.source, forces=forces) for forces in (True, False)}
    rng, num_forced = random.Random(1), 0
    end = tokenizer.eos_token_id or size - 1

    def plain() -> Matcher:
        return Matcher(compiled[False], table, [end])

    for _ in range(6):
        forcing, token_ids = Matcher(compiled[True], table, [end], forces=True), list[int]()
        expected: tuple[int, ...] = ()
        while end not in token_ids:
            allowed = make_mask(forcing, token_ids, size)
            forced = forcing.forced
            assert make_mask(forcing, token_ids, size) == allowed
            assert forcing.forced == forced and (not expected or forced == expected)
            if not forced:
                assert allowed <= make_mask(plain(), token_ids, size)
                token_ids.append(rng.choice(sorted(allowed)))
                continue
            assert allowed == {forced[0]}
            num_forced += 1
            check_forced(plain, tokens, end, token_ids, forced)
            taken = forced if takes_all else forced[:1]
            token_ids += taken
            expected = forced[len(taken) :]
        answer = json.loads(b"".join(map(tokens.__getitem__, token_ids[:-1])))
        assert answer["note"] == SCHEMA["properties"]["note"]["const"]  # type: ignore[index]
    assert num_forced > 20


def check_forced(
    plain: Callable[[], Matcher], tokens: Sequence[bytes], end: int, known: Sequence[int], forced: Sequence[int]
) -> None:
    text = b"".join(map(tokens.__getitem__, forced))
    for place in range(len(text)):
        by_byte = [tokens.index(bytes([byte])) for byte in text[:place]]
        for token_id in make_mask(plain(), [*known, *by_byte], len(tokens)):
            assert token_id != end
            left = text[place:]
            assert left.startswith(tokens[token_id]), (text, place, tokens[token_id])


def test_a_choice_of_characters_is_found_where_nothing_is_forced(tokenizer: Tokenizer) -> None:
    """Whether two characters are allowed is looked for in a few words of the mask: in many places that is enough to
    know that no text is forced, and it never says so where one is."""
    size = len(tokenizer.hf)
    table = TokenTable(tokenizer.spelling.spell_all(size), tokenizer.encode)
    program = make_program(Grammar(kind="json_schema", source=json.dumps(SCHEMA)))
    compiled, rng, found = (
        compile_program(table, program.source, forces=True),
        random.Random(3),
        Counter[tuple[bool, bool]](),
    )
    for _ in range(6):
        follower = compiled.deep_copy()
        for _ in range(200):
            words = np.frombuffer(follower.compute_bitmask(), np.uint8).view(np.int32)
            allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")[:size])
            if not len(allowed):
                break
            found[table.leaves_choice(words), bool(follower.compute_ff_tokens())] += 1
            follower.consume_token(rng.choice(allowed.tolist()))
    assert not found[True, True] and found[False, True] > 5
    assert found[True, False] > 2 * found[False, False]

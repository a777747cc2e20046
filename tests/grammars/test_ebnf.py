"""Grammars in EBNF allow valid Unicode only; what else they name is refused by name."""

from __future__ import annotations

import json

import pytest
from grammars import byte_grammar
from grammars.byte_grammar import compile_grammar

from seesay.config.grammar import Grammar
from seesay.errors import RequestError

PROBES = ("a", "-", "z", "]", "^", '"', "\n", "\ud7ff", "\ue000", "\uffff", "😀", "\U0010ffff")


def accepts(source: str, data: bytes) -> bool:
    return byte_grammar.accepts(compile_grammar(Grammar(kind="ebnf", source=source)), data)


@pytest.mark.parametrize(
    ("chars", "allowed"),
    [
        ("[^a]", [char for char in PROBES if char != "a"]),
        ("[^^-]", [char for char in PROBES if char not in "^-"]),
        (r"[^\n\]\"]", [char for char in PROBES if char not in '\n]"']),
        (r"[^\ud800-\udfff]", list(PROBES)),
        (r"[^\ud900a]", [char for char in PROBES if char != "a"]),
        ("[^]", list(PROBES)),
        (r"[a-\uffff]", ["a", "z", "\ud7ff", "\ue000", "\uffff"]),
        (r"[\ud7ff-\ue000-]", ["-", "\ud7ff", "\ue000"]),
        (r"[\x0-\x10ffff]", list(PROBES)),
        (r"[\-\]\^]", ["-", "]", "^"]),
        ("[a-z]", ["a", "z"]),
        (r"[\U0001f600😀]", ["😀"]),
    ],
)
def test_a_class_allows_its_characters_and_no_half_of_a_pair(chars: str, allowed: list[str]) -> None:
    source = f'root ::= {chars} # not in "a" [string'
    assert [char for char in PROBES if accepts(source, char.encode())] == allowed
    for half in ("\ud800", "\udbff", "\udc00", "\udfff"):
        assert not accepts(source, half.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        (r'"a\ud800"', r"the lone surrogate U\+D800"),
        (r'"\xdfff"', r"the lone surrogate U\+DFFF"),
        (r'"\U0000dc00"', r"the lone surrogate U\+DC00"),
        (r'"\ud83d\ude00"', r"the lone surrogate U\+D83D, which stands in no text: write \\U and 8 digits"),
        (r"[\ud800-\udfff]", r"the lone surrogate U\+D800"),
        (r"[a\udfff]", r"the lone surrogate U\+DFFF"),
        (r'"\U00110000"', r"above U\+10FFFF"),
        (r'"\x100000041"', r"above U\+10FFFF"),
        (r"[^a-\Uffffffff]", r"above U\+10FFFF"),
        ('Regex("^(?=b)a$")', r"Regex\(…\) is not supported"),
    ],
)
def test_what_stands_in_no_text_is_refused_by_name(rule: str, error: str) -> None:
    source = f'root ::= x\nx ::= "\\"" {rule}'
    with pytest.raises(RequestError, match=f"^response_format: .*{error}"):
        compile_grammar(Grammar(kind="ebnf", source=source))
    inside = {"type": "sequence", "elements": [{"type": "grammar", "grammar": source}]}
    tag = Grammar(kind="structural_tag", source=json.dumps({"format": inside}))
    with pytest.raises(RequestError, match=rf"^response_format\.format\.elements\[0\]\.grammar: .*{error}"):
        compile_grammar(tag)

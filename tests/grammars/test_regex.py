"""A regular expression allows the texts that Python's `re` matches as a whole, and no others."""

from __future__ import annotations

import json
import random
import re

import pytest
from cpu_time import check_cpu_s
from grammars.byte_grammar import accepts, compile_grammar, compile_schema

from seesay.config.grammar import Grammar
from seesay.errors import RequestError
from seesay.grammars.regex import MAX_LENGTH, rewrite_regex

PATTERNS = [
    "a*", "a+?b", "(ab|cd)*", "[a-c]{2,3}", r"\d+\.\d{2}", r"\w+\s\w+", "^abc$", "a|b|", "(?:a|b)c", "(?P<x>a)b", ".",
    r"[^\d]", r"\D", r"[\w-]+", "a{0}", "a{,3}", "a{2,}", r"\Aab\Z", "[]a]", "[^]a]", "[a-]", r"\x41", r"\t\n",
    "(^a|b$)", r"\/", r"[\]\[]", "(a|)", "()", "x{1000}", r"[\s\S]", r"\.", "(?#c)a", r"\S", r"\W", r"[^\n]", "$", "^",
    "{", "a{", "}", "]", "é+", "[à-ÿ]", "(?:a*)*", "(a*)+", "a{x}", "", '[^"]', r'"a\\b', "[😀-😏]a?", r"[\x00-\x1f]",
]  # fmt: skip
CHARS = [*'abcd019 .-_\n\t]^[\\/éAZxfo{},$"\x01', "😀", "٣", "\u3000", "日", "àÿ"]
NARROW = {r"\W", r"[\s\S]", r"[\x00-\x1f]"}
"""Allow fewer texts than `re`: characters outside of ASCII are neither `\\w` nor `\\W`; in JSON, control characters
are only those with short escapes."""


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_texts_are_those_of_re(pattern: str) -> None:
    compiled = compile_grammar(Grammar(kind="regex", source=pattern))
    unicode, ascii_only, rng = re.compile(pattern), re.compile(pattern, re.ASCII), random.Random(pattern)
    for _ in range(500):
        text = "".join(rng.choice(CHARS) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4])))
        matches = [bool(expression.fullmatch(text)) for expression in (unicode, ascii_only)]
        allows = accepts(compiled, text)
        assert all(matches) or not allows, text
        assert allows or pattern in NARROW or not all(matches), text


NO_PATTERNS = {r"\Aab\Z", "[]a]", "[^]a]", "(?P<x>a)b", "(?#c)a", "{", "a{", "}", "]", "a{,3}", "a{x}", r"[\x00-\x1f]"}
"""Mean something else in ECMAScript, or nothing; control characters have no spelling in answers."""


@pytest.mark.parametrize("pattern", [pattern for pattern in PATTERNS if pattern not in NO_PATTERNS])
def test_a_pattern_of_a_schema_is_found_in_its_texts(pattern: str) -> None:
    compiled, rng = compile_schema({"type": "string", "pattern": pattern}), random.Random(pattern)
    expressions = re.compile(pattern), re.compile(pattern, re.ASCII)
    for _ in range(500):
        text = "".join(rng.choice(CHARS) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4])))
        if "\x01" in text:
            continue
        found = [expression.search(text) is not None for expression in expressions]
        allows = accepts(compiled, json.dumps(text, ensure_ascii=False))
        assert any(found) or not allows, text
        assert allows or not all(found) or text.endswith("\n"), text  # Python's $ stands before a line's end, too


@pytest.mark.parametrize(
    ("pattern", "text", "is_found"),
    [
        (r"^[a&&b]$", "&", True), (r"^[+--]$", "-", True), (r"^[[]$", "[", True), (r"^\u0041\x42\cJ$", "AB\n", True),
        (r"^\ud83d\ude00$", "😀", True), (r"^\<\>\_$", "<>_", True), (r"^[\b]", "\b", True), (r"^[\d-x]$", "7", True),
        (r"^[^\D]$", "7", True), (r"^[^\D]$", "x", False), (r"^a b#c$", "a b#c", True), (r"^\p{Lu}$", "É", True),
        (r"^(?<year>\d{4})/$", "2024/", True), (r"^\d$", "٣", False), ("^$|^x", "", True), ("a|^b$", "xb", False),
        ('^[^"]$', '"', False), (r"^[^\\]$", "\\", False), (r'^[\x00-!#-~]$', '"', False), (r'^[^\S"]$', '"', False),
    ],
)  # fmt: skip
def test_patterns_are_those_of_ecmascript(pattern: str, text: str, is_found: bool) -> None:
    assert (
        accepts(compile_schema({"type": "string", "pattern": pattern}), json.dumps(text, ensure_ascii=False))
        == is_found
    )


@pytest.mark.parametrize(
    ("pattern", "named"),
    [(r"\bx", "word boundaries"), (r"(a)\1", "backreferences"), (r"\ud800", "surrogate"), ("x" * 20_001, "characters")],
)
def test_what_no_pattern_of_a_schema_can_have_is_named(pattern: str, named: str) -> None:
    with pytest.raises(RequestError, match=rf"schema at \$: pattern has .*{named}"):
        compile_schema({"type": "string", "pattern": pattern})


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("(?=a)b", "lookahead"), ("(?<!a)b", "lookbehind"), (r"(a)\1", "backreferences"), (r"\bfoo", "word boundaries"),
        ("a^b", r"\^ and \$ in the middle"), ("(?i)a", "flags"), ("(?i:a)", "flags"), ("a++", "possessive"),
        ("(?>a)b", "atomic"), (r"\p{L}", "bad escape"), ("(", "is not valid: "), ("*a", "is not valid: "),
        ("a{20000}", "repeats more than"), ("(" * 60 + "a" + ")" * 60, "nested"), ("(a)?(?(1)b|c)", "conditional"),
        ("(" * 20000, "is not valid: "),
    ],
)  # fmt: skip
def test_what_is_no_regular_language_is_refused_by_name(pattern: str, named: str) -> None:
    with pytest.raises(RequestError, match=named) as caught:
        compile_grammar(Grammar(kind="regex", source=pattern))
    assert caught.value.param == "response_format"


def test_long_expressions_take_time_in_proportion() -> None:
    """Each would take minutes if its length were squared."""
    ideographs = "".join(chr(0x4E00 + 2 * index) for index in range(10_000))
    for pattern in ("x" * MAX_LENGTH, "^" * MAX_LENGTH, "." * MAX_LENGTH, f"[{ideographs}]", f"[^{ideographs}]"):
        check_cpu_s(lambda pattern=pattern: rewrite_regex(pattern, "it"), 2.0)  # type: ignore[misc]
    with pytest.raises(RequestError, match="it has 50001 characters; at most 50000 are taken"):
        rewrite_regex("x" * (MAX_LENGTH + 1), "it")


def test_choices_are_texts_whatever_they_hold() -> None:
    choices = ["yes", "no", 'q"\\\n\t', "ünï 😀 日", "root ::= x", "[a-z]", "\x00\x7f"]
    compiled = compile_grammar(Grammar(kind="choice", source=json.dumps(choices)))
    assert all(accepts(compiled, choice) for choice in choices)
    assert not any(accepts(compiled, text) for text in ("", "y", "yesno", "a", 'q"\\'))

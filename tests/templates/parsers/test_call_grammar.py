"""Grammars of calls: every answer that they allow is read as calls whose arguments are valid."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import jsonschema
import pytest
from grammars.byte_grammar import allowed_tokens
from pairs import num_examples, parametrize_sweep
from templates.parsers.reading import read

from seesay.config.grammar import read_grammar
from seesay.grammars.compile import TokenTable, compile_program
from seesay.grammars.program import make_program
from seesay.templates.parsers.choose import TOOL_FORMATS, AnswerFormat, find_answer_format
from seesay.templates.parsers.parts import AnswerPart, CallArguments, CallStart, ContentText

pytest.importorskip("llguidance")

SCHEMAS: dict[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 1, "maximum": 20},
            "unit": {"enum": ["C", "F"]},
            "exact": {"type": "boolean"},
            "at": {"$ref": "#/$defs/place"},
            "either": {"type": ["string", "integer"]},
        },
        "required": ["days", "city"],
        "$defs": {
            "place": {
                "type": "object",
                "properties": {"lat": {"type": "number"}, "tags": {"type": "array", "items": {"type": "string"}}},
                "required": ["tags"],
            }
        },
    },
    "now": {"type": "object", "properties": {}},
    "note": {"type": "object", "properties": {"text": {"type": "string"}, "more": {"type": "null"}}},
}
VALIDATORS = {name: jsonschema.Draft202012Validator(schema) for name, schema in SCHEMAS.items()}
TOOLS: list[dict[str, object]] = [
    {"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()
]
NUM_BYTES = 256
LIKELY = frozenset(b'\\"u0123456789abcdef,:{}[]<>/=`.-T;\n')
"""Quotes, escapes, digits and signs come often enough for an answer to end and to be odd."""
BEGINNINGS = {"llama3_json": '{"name"', "pythonic": "[now("}
"""Of calls without a marker."""


def open_format(name: str, *, is_special: bool) -> AnswerFormat:
    """The format, with markers that are special tokens behind the bytes of the vocabulary, or with plain ones."""
    tokens = TOOL_FORMATS[name].tokens if is_special else ()
    return find_answer_format("", {token: NUM_BYTES + i for i, token in enumerate(tokens)}, tool_call_parser=name)


@cache
def token_table(tokens: tuple[str, ...]) -> TokenTable:
    return TokenTable([*(bytes([i]) for i in range(256)), *(b"\xff" + token.encode() for token in tokens)])


class Walk:
    """A random answer that a grammar allows, in a vocabulary of bytes and the format's special tokens."""

    def __init__(
        self, format: AnswerFormat, mode: Literal["auto", "required"], is_parallel: bool, other: Any = None
    ) -> None:
        self.tokens = tuple(format.special_ids)
        form = format.call_grammar(TOOLS, mode, is_parallel, other)
        grammar = read_grammar(form)
        assert grammar is not None and format.tools is not None
        program = make_program(grammar)
        self.compiled = compile_program(token_table(self.tokens), program.source, forces=False)
        self.end = NUM_BYTES + len(self.tokens)
        self.markers = [self.spell(marker) for marker in format.tools.markers]
        self.tags = [self.spell(tag) for tag in format.tools.tokens]
        self.beginning = self.spell(BEGINNINGS.get(self.name_of(format), ""))

    @staticmethod
    def name_of(format: AnswerFormat) -> str:
        return next(name for name, tools in TOOL_FORMATS.items() if tools is format.tools)

    def spell(self, text: str) -> list[int]:
        for index, token in enumerate(self.tokens):
            before, found, after = text.partition(token)
            if found:
                return [*self.spell(before), NUM_BYTES + index, *self.spell(after)]
        return list(text.encode())

    def run(self, rng: random.Random, max_tokens: int = 900) -> list[int] | None:
        matcher = self.compiled.deep_copy()
        ids: list[int] = []
        planned = list(self.beginning) if rng.random() < 0.5 else []
        while len(ids) < max_tokens:
            allowed = allowed_tokens(matcher, self.end + 1)
            assert allowed, (self.text(ids), "nothing is allowed")
            if self.end in allowed and not planned and rng.random() < 0.1:
                return ids
            is_free = len(allowed) > 170
            if is_free and not planned and rng.random() < 0.4:
                planned = list(rng.choice(self.markers))
            elif len(allowed) > 150 and not planned and rng.random() < 0.1:  # in a text
                planned = list(rng.choice(self.tags))
            if planned and planned[0] in allowed:
                token = planned.pop(0)
            else:
                planned = []
                likely = [i for i in allowed if i >= 256 or i in LIKELY]
                token = rng.choice(likely if likely and rng.random() < 0.8 else allowed)
            if token == self.end:
                return ids
            assert matcher.consume_token(token)
            ids.append(token)
        return None

    def text(self, ids: Sequence[int]) -> str:
        data = [bytes([i]) if i < NUM_BYTES else self.tokens[i - NUM_BYTES].encode() for i in ids]
        return b"".join(data).decode("utf-8", "replace")


def check(parts: Sequence[AnswerPart], text: str) -> int:
    """Check the calls of an answer, and return their number."""
    names = [part.name for part in parts if isinstance(part, CallStart)]
    arguments = [part.text for part in parts if isinstance(part, CallArguments)]
    assert len(names) == len(arguments), text
    for name, written in zip(names, arguments, strict=True):
        VALIDATORS[name].validate(json.loads(written))
    return len(names)


@parametrize_sweep(name=TOOL_FORMATS, is_special=[False, True])
def test_beside_a_format_answers_are_calls_alone_or_in_the_format(name: str, is_special: bool) -> None:
    format = open_format(name, is_special=is_special)
    other = {"type": "object", "properties": {"number": {"enum": [7]}, "all": {"enum": ["a"]}}, "required": ["number"]}
    walk = Walk(format, "auto", False, {"type": "json_schema", "json_schema": other})
    rng = random.Random(name)
    kinds = set()
    for _ in range(40):
        if (ids := walk.run(rng)) is None:
            continue
        parts = read(format, [walk.text(ids)], tools=TOOLS, streams_calls=True, calls_alone=True)
        content = "".join(part.text for part in parts if isinstance(part, ContentText))
        num_calls = check(parts, content)
        kinds.add(num_calls)
        assert num_calls == 1 or jsonschema.validate(json.loads(content), other) is None
        assert num_calls == 0 or content == ""
    assert kinds == {0, 1}


@parametrize_sweep(name=TOOL_FORMATS, is_special=[False, True])
def test_required_answers_are_calls_alone(name: str, is_special: bool) -> None:
    format = open_format(name, is_special=is_special)
    rng = random.Random(name)
    most = 0
    for is_parallel in (True, False):
        walk = Walk(format, "required", is_parallel)
        for _ in range(num_examples(40)):
            ids = walk.run(rng)
            if ids is None:
                continue
            text = walk.text(ids)
            for streams_calls in (False, True):
                parts = read(format, [text], tools=TOOLS, streams_calls=streams_calls)
                assert not any(isinstance(part, ContentText) for part in parts), (text, parts)
                num_calls = check(parts, text)
                assert num_calls == 1 or (is_parallel and num_calls > 1), text
            most = max(most, num_calls)
    assert most >= 1


@parametrize_sweep(name=TOOL_FORMATS, is_special=[False, True])
def test_a_call_that_is_begun_is_valid(name: str, is_special: bool) -> None:
    format = open_format(name, is_special=is_special)
    rng = random.Random(name)
    walk = Walk(format, "auto", True)
    num_calls = num_texts = 0
    for _ in range(num_examples(60)):
        ids = walk.run(rng)
        if ids is None:
            continue
        text = walk.text(ids)
        parts = read(format, [text], tools=TOOLS)
        found = check(parts, text)
        marker = next(iter(TOOL_FORMATS[name].markers), None)
        if marker is not None and not TOOL_FORMATS[name].begins_answer:
            assert not any(marker in part.text for part in parts if isinstance(part, ContentText)), (text, parts)
        num_calls += found
        num_texts += not found
    assert num_calls >= 2
    assert num_texts >= 2 or not TOOL_FORMATS[name].begins_answer

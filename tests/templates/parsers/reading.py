"""Reads answers in pieces, for the tests of parsers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise

from seesay.templates.parsers.choose import AnswerFormat, find_answer_format
from seesay.templates.parsers.parts import (
    AnswerPart,
    CallArguments,
    CallEnd,
    CallStart,
    ContentText,
    ReasoningText,
    join_parts,
)

NUM_CUTS_IN_THREE = 1000
TOOLS: Sequence[dict[str, object]] = (
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
)


def call(index: int, name: str, arguments: str) -> list[AnswerPart]:
    return [CallStart(index, name), CallArguments(index, arguments), CallEnd(index)]


def content(text: str) -> list[AnswerPart]:
    return [ContentText(text)]


def thought(text: str) -> list[AnswerPart]:
    return [ReasoningText(text)]


def named(tool_call_parser: str | None = None, reasoning_parser: str | None = None) -> AnswerFormat:
    return find_answer_format("", {}, tool_call_parser=tool_call_parser, reasoning_parser=reasoning_parser)


def read(
    format: AnswerFormat,
    pieces: Sequence[str],
    *,
    tools: Sequence[dict[str, object]] = TOOLS,
    is_thinking: bool = False,
    streams_calls: bool = False,
    calls_alone: bool = False,
) -> list[AnswerPart]:
    parser = format.parser(tools=tools, is_thinking=is_thinking, streams_calls=streams_calls, calls_alone=calls_alone)
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return join_parts([*parts, *parser.finish()])


def cut(text: str) -> Iterator[list[str]]:
    """Every way to cut a text in two; one character at a time; random ways to cut it in three, if it is short, and some
    to cut it in more."""
    yield list(text)
    for first in range(len(text) + 1):
        yield [text[:first], text[first:]]
    chosen = random.Random(text)
    for _ in range(min(NUM_CUTS_IN_THREE, len(text) ** 2) if len(text) <= 120 else 0):
        first, second = sorted(chosen.randrange(len(text) + 1) for _ in range(2))
        yield [text[:first], text[first:second], text[second:]]
    for _ in range(20):
        places = sorted(chosen.randrange(len(text) + 1) for _ in range(chosen.randrange(2, 12)))
        yield [text[a:b] for a, b in pairwise([0, *places, len(text)])]


def read_cut(format: AnswerFormat, text: str, **options: object) -> list[AnswerPart]:
    """Read a text in every way of cutting it, which must not make a difference."""
    whole = read(format, [text], **options)  # type: ignore[arg-type]
    for pieces in cut(text):
        assert read(format, pieces, **options) == whole, pieces  # type: ignore[arg-type]
    return whole

"""Calls that are JSON objects between markers."""

from __future__ import annotations

import json

import pytest
from templates.parsers.reading import call, content, named, read, read_cut

HERMES = named("hermes")


@pytest.mark.parametrize("streams_calls", [False, True])
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', call(0, "f", '{"a": 1}')),
        ('See.\n\n<tool_call>{"name": "f", "arguments": {}}</tool_call>\n', content("See.") + call(0, "f", "{}")),
        (
            '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": "g"}\n</tool_call>',
            call(0, "f", "{}") + call(1, "g", "{}"),
        ),
        (
            '<tool_call>{"name": "f", "arguments": {}}</tool_call> and <tool_call>{"name": "g"}</tool_call> end',
            call(0, "f", "{}") + content(" and") + call(1, "g", "{}") + content(" end"),
        ),
        (
            '<tool_call>{"name": "f", "arguments": {"a": "</tool_call><tool_call>é\\u00e9\\"}"}}</tool_call>',
            call(0, "f", '{"a": "</tool_call><tool_call>é\\u00e9\\"}"}'),
        ),
        ('<tool_call>{"arguments": {"a": 1}, "id": [], "name": "f"}</tool_call>', call(0, "f", '{"a": 1}')),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', call(0, "f", '{"a": 1}')),
        ('<tool_call>{"name": "f", "parameters": null}', call(0, "f", "{}")),
    ],
)
def test_calls(text: str, parts: list[object], streams_calls: bool) -> None:
    assert read_cut(HERMES, text, streams_calls=streams_calls) == parts


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "  a <tool_call> b\n",
        "<tool_cal",
        '<tool_call>{"name": "f", "arguments": {"a": tru}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": "cut off',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 01}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": "\n"}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 1,}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}} and so on</tool_call>',
        '<tool_call>{"name": "f", "name": "g", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}, "parameters": {}}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "not JSON"}</tool_call>',
    ],
)
def test_malformed_calls_are_content(text: str) -> None:
    assert read_cut(HERMES, text) == content(text)


def test_a_malformed_call_does_not_hide_the_next_one() -> None:
    bad, good = '<tool_call>{"name": f}</tool_call>', '<tool_call>{"name": "g"}</tool_call>'
    assert read_cut(HERMES, bad + good) == content(bad) + call(0, "g", "{}")
    assert read_cut(HERMES, good + bad) == call(0, "g", "{}") + content(bad)


def test_without_tools_all_is_content() -> None:
    text = '<tool_call>{"name": "f"}</tool_call>'
    assert read(HERMES, [text], tools=()) == content(text)


def test_arguments_arrive_as_they_are_written() -> None:
    parser = HERMES.parser(tools=[{"type": "function"}], streams_calls=True)
    text = '<tool_call>{"name": "f", "arguments": {"a": "some words"}}</tool_call>'
    num_parts = [len(parser.feed(char)) for char in text]
    assert sum(num_parts) + len(parser.finish()) > 20


def test_nesting_is_bounded() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 100_000
    assert read(HERMES, [text]) == content(text)
    deep = f'{{"a": {"[" * 250}{"]" * 250}}}'
    assert read(HERMES, [f'<tool_call>{{"name": "f", "arguments": {deep}}}']) == call(0, "f", deep)
    json.loads(deep)

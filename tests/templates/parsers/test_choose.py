"""Which format a model has."""

from __future__ import annotations

import pytest

from seesay.errors import ConfigError
from seesay.templates.parsers.choose import find_answer_format
from seesay.templates.parsers.gemma_calls import GEMMA4
from seesay.templates.parsers.object_calls import HERMES
from seesay.templates.parsers.reasoning import GEMMA_THOUGHT


def test_formats_are_found_in_the_template() -> None:
    found = find_answer_format(
        "… <tool_call></tool_call> … <think>", {"<|im_end|>": 7, "</tool_call>": 8, "<think>": 9}
    )
    assert found.tools is HERMES
    assert found.reasoning is not None
    assert found.kept_tokens == ("</tool_call>", "<think>")
    plain = find_answer_format("{{ messages }}", {"<think>": 9})
    assert plain.tools is None and plain.reasoning is None and plain.kept_tokens == ()


def test_unknown_names_are_refused_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"tool_call_parser must be one of .*hermes.*, got 'hermse'"):
        find_answer_format("", {}, tool_call_parser="hermse")
    with pytest.raises(ConfigError, match=r"reasoning_parser must be one of .*qwen3.*, got 'q'"):
        find_answer_format("", {}, reasoning_parser="q")


def test_gemmas_template_names_both_of_its_formats() -> None:
    source = """{{ '<|"|>' + argument + '<|"|>' }} {{- '<|tool_call>call:' + name + '{' }} {{- '}<tool_call|>' -}}
    {%- set parts = text.split('<channel|>') %} {{- '<|channel>thought\n<channel|>' -}}"""
    found = find_answer_format(source, {"<|channel>": 3, "<tool_call|>": 4, '<|"|>': 5, "<turn|>": 6})
    assert found.tools is GEMMA4 and found.reasoning is GEMMA_THOUGHT
    assert set(found.kept_tokens) == {"<|channel>", "<tool_call|>", '<|"|>'}

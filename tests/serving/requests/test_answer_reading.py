"""How answers are read where the format of a model marks text, too."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from templates.parsers.test_formats import CALLS, TOOLS

from seesay.serving.requests.answer_reading import AnswerReading, ReadAnswer
from seesay.serving.requests.field_names import ENGINE_NAMES
from seesay.serving.requests.tools import Tools, make_function
from seesay.templates.parsers.choose import find_answer_format

NUMBER = {"type": "regex", "regex": "[0-9]+"}


def choose(parser: str, answer_format: Mapping[str, object] | None, tools: Tools | None = None) -> AnswerReading:
    engine: Any = SimpleNamespace(answer_format=find_answer_format("", {}, tool_call_parser=parser), chat_template=None)
    return AnswerReading.choose(engine, tools or Tools(), answer_format, ENGINE_NAMES)


def test_a_format_of_the_answer_holds_the_text_in_its_channel() -> None:
    grammar = choose("gpt_oss", NUMBER).grammar
    assert grammar is not None and grammar["type"] == "structural_tag"
    assert grammar["format"]["elements"][-1] == {"type": "regex", "pattern": "[0-9]+"}
    assert choose("hermes", NUMBER).grammar == NUMBER
    assert choose("gpt_oss", {"type": "text"}).grammar == {"type": "text"}


def test_channels_are_read_without_tools() -> None:
    text = "<|channel|>final<|message|>Yes.<|return|>"
    reading = choose("gpt_oss", None)
    assert not reading.is_plain
    assert ReadAnswer.read(reading, text, is_thinking=False).content == "Yes."
    assert ReadAnswer.read(choose("hermes", None), text, is_thinking=False).content == text


@pytest.mark.parametrize("name", CALLS)
def test_a_forced_call_has_no_text_wherever_it_is_cut(name: str) -> None:
    function: Any = TOOLS[0]["function"]
    look = make_function("f", None, function["parameters"], None, place="tools[0].function")
    reading = choose(name, None, Tools(functions=(look,), mode="required"))
    for stop in range(len(CALLS[name])):
        assert not ReadAnswer.read(reading, CALLS[name][:stop], is_thinking=False).content
    [call] = ReadAnswer.read(reading, CALLS[name], is_thinking=False).calls
    assert call.name == "f" and call.is_complete

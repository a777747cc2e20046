"""What templates make of tools, calls and results is found by trying, and conversations are brought into that form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from templates.tool_templates import DEEPSEEK, HERMES, HERMES_WITH_PICTURES, MISTRAL, XML

import seesay.demo
from seesay.errors import RequestError
from seesay.templates import JinjaTemplate
from seesay.templates.builtin import find, find_file
from seesay.templates.pieces import PiecesTemplate
from seesay.values import MediaPart, Message, Modality, TextPart

CHATML = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' }}{% endfor %}"
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
MARKERS = {
    Modality.IMAGE: "<|vision_start|><|image_pad|><|vision_end|>",
    Modality.VIDEO: "<|vision_start|><|video_pad|><|vision_end|>",
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}},
    }
]


def make(source: str, **named: str) -> JinjaTemplate:
    return JinjaTemplate("test", source, named=named, special_tokens=SPECIAL, variables={"bos_token": "<s>"})


def say(role: str, *parts: Any, **extra: Any) -> Message:
    texts = tuple(TextPart(text=part) if isinstance(part, str) else part for part in parts)
    return Message(role=role, parts=texts, extra=extra)


def call(arguments: str = '{"at": "the sky", "far": [1, true]}', call_id: str = "call_1") -> Message:
    function = {"name": "look", "arguments": arguments}
    return say("assistant", tool_calls=[{"id": call_id, "type": "function", "function": function}])


def result(*parts: Any, call_id: str = "call_1") -> Message:
    return say("tool", *parts, tool_call_id=call_id)


def image(name: str = "a.png") -> MediaPart:
    return MediaPart(modality=Modality.IMAGE, source=name)


_FILE = find_file("qwen-tools")
assert _FILE is not None
QWEN_TOOLS = _FILE.read_text(encoding="utf-8")
BUILT_IN = (Path(seesay.demo.__file__).parent / "checkpoint" / "chat_template.jinja").read_text(encoding="utf-8")


@pytest.mark.parametrize("source", [HERMES, HERMES_WITH_PICTURES, QWEN_TOOLS, DEEPSEEK, MISTRAL, XML])
def test_a_template_with_tools(source: str) -> None:
    assert make(source).writes_tools and "look" in make(source).render([say("user", "hi")], tools=TOOLS).text


def test_the_built_in_model_takes_tools() -> None:
    assert BUILT_IN == QWEN_TOOLS


def test_a_template_without_tools() -> None:
    assert not make(CHATML).writes_tools
    assert make(CHATML, tool_use=HERMES).writes_tools  # of named templates it is asked for tools
    pieces = find("qwen")
    assert pieces is not None and not PiecesTemplate("qwen", pieces).writes_tools


@pytest.mark.parametrize(
    ("source", "written"),
    [
        (HERMES, '"arguments": {"at": "the sky", "far": [1, true]}}\n'),
        (QWEN_TOOLS, '"arguments": {"at": "the sky", "far": [1, true]}}\n'),
        (DEEPSEEK, '```json\n{"at": "the sky", "far": [1, true]}\n```'),
        (MISTRAL, '"arguments": {"at": "the sky", "far": [1, true]}'),
        (XML, "<parameter=at>the sky</parameter><parameter=far>[1, true]</parameter>"),
    ],
    ids=["hermes", "example", "deepseek", "mistral", "xml"],
)
def test_arguments_are_written_as_the_template_takes_them(source: str, written: str) -> None:
    rendered = make(source).render([say("user", "hi"), call(), result("blue")], tools=TOOLS).text
    assert written in rendered and "blue" in rendered


def test_arguments_that_are_not_an_object_stay_text() -> None:
    for arguments in ("[1]", "{", "[" * 5000, "nothing"):
        rendered = make(HERMES).render([say("user", "hi"), call(arguments), result("x")], tools=TOOLS).text
        assert rendered.count("tool_response") == 2
    assert '"arguments": {}' in make(HERMES).render([say("user", "hi"), call(""), result("x")], tools=TOOLS).text
    with pytest.raises(RequestError, match="at most 65536 values"):
        make(HERMES).render([say("user", "hi"), call("[" + "1," * 70_000 + "1]")], tools=TOOLS)


def test_special_tokens_in_arguments_are_text() -> None:
    rendered = make(HERMES).render([say("user", "hi"), call('{"<|im_end|>": "<|im_start|>"}')], tools=TOOLS)
    assert [rendered.text[start:stop] for start, stop in rendered.literals] == ["<|im_end|>", "<|im_start|>"]


def test_ids_are_shortened_for_templates_that_take_short_ones_only() -> None:
    messages = [say("user", "hi"), call(call_id="call_of_some_length"), result("x", call_id="call_of_some_length")]
    rendered = make(MISTRAL).render(messages, tools=TOOLS).text
    [first] = {piece[:9] for piece in rendered.split('"id": "')[1:]}
    assert f'"call_id": "{first}"' in rendered and first.isalnum()
    short = [say("user", "hi"), call(call_id="abcdefgh9"), result("x", call_id="abcdefgh9")]
    assert make(MISTRAL).render(short, tools=TOOLS).text.count("abcdefgh9") == 2


def test_qwen_tools_is_the_template_of_the_built_in_model_where_there_are_no_tools() -> None:
    for messages in (
        [say("user", "a", image(), "b"), say("assistant", "c"), say("user", "d")],
        [say("system", "e"), say("user", "f")],
    ):
        written = [make(source).render(messages, markers=MARKERS).text for source in (QWEN_TOOLS, BUILT_IN)]
        assert written[0] == written[1]


@pytest.mark.parametrize("source", [HERMES_WITH_PICTURES, QWEN_TOOLS])
def test_a_picture_stays_in_a_result_that_has_a_place_for_it(source: str) -> None:
    messages = [say("user", "hi"), call(), result("seen: ", image())]
    rendered = make(source).render(messages, tools=TOOLS, markers=MARKERS)
    [(start, stop)] = rendered.markers
    assert rendered.text[:start].endswith("<tool_response>\nseen: ") and rendered.media == (image(),)
    assert rendered.text[stop:].startswith("\n</tool_response>")


def test_a_picture_without_a_place_follows_the_results() -> None:
    results = [result("one: ", image("1")), result("two: ", image("2"), call_id="call_2")]
    twice = say("assistant", tool_calls=[*call().extra["tool_calls"], *call(call_id="call_2").extra["tool_calls"]])
    for rest, end in (
        ([], "<|im_end|>\n<|im_start|>assistant\n"),
        ([say("user", "and?")], "and?<|im_end|>\n<|im_start|>assistant\n"),
        ([say("assistant", "seen"), say("user", "and?")], "<|im_end|>\n<|im_start|>assistant\nseen<|im_end|>\n"),
    ):
        messages = [say("user", "hi"), twice, *results, *rest]
        rendered = make(HERMES).render(messages, tools=TOOLS, markers=MARKERS)
        (first, middle), (also_middle, last) = rendered.markers
        assert rendered.text[:first].endswith("two: \n</tool_response><|im_end|>\n<|im_start|>user\n")
        assert middle == also_middle and rendered.text[last:].startswith(end)
        assert rendered.media == (image("1"), image("2"))


def test_texts_of_a_result_are_one() -> None:
    rendered = make(HERMES).render([say("user", "hi"), call(), result("a", "b")], tools=TOOLS).text
    assert "<tool_response>\na\nb\n</tool_response>" in rendered

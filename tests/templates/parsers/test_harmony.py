"""Messages in channels, as gpt-oss writes them."""

from __future__ import annotations

import pytest
from templates.parsers.reading import call, content, named, read, read_cut, thought

from seesay.templates.parsers.choose import find_answer_format

GPT_OSS = named("openai", "openai_gptoss")
TO_F = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
NEXT = "<|start|>assistant"
ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (f"{ANALYSIS}Hm.<|end|>{NEXT}{FINAL}Yes.\n<|return|>", thought("Hm.") + content("Yes.\n")),
        (f"{FINAL}Yes.", content("Yes.")),
        (f'{ANALYSIS}\nHm. <|end|>{NEXT}{TO_F}{{"a": 1}}<|call|>', thought("Hm.") + call(0, "f", '{"a": 1}')),
        (f'{NEXT} to=functions.f<|channel|>commentary json<|message|>{{"a": 1}}<|call|>', call(0, "f", '{"a": 1}')),
        (f"{NEXT} to=functions.f<|channel|>commentary<|constrain|>json<|message|>{{}}", call(0, "f", "{}")),
        (f"<|channel|>analysis to=functions.f code<|message|>{{}}<|end|>{NEXT}{FINAL}Done.",
         call(0, "f", "{}") + content("Done.")),
        (f"{ANALYSIS}a<|end|>{NEXT}<|channel|>commentary<|message|>I look.<|end|>{NEXT}{ANALYSIS}b<|end|>{NEXT}{TO_F}"
         "<|call|>", thought("a") + content("I look.") + thought("b") + call(0, "f", "{}")),
        (f"{ANALYSIS}cut off", thought("cut off")),
        (f"{ANALYSIS}Hm.<|end|>{NEXT}<|channel|>fin", thought("Hm.")),
        (f"{FINAL}{{}} to=functions.f", content("{} to=functions.f")),
        ("No channel at all.", content("No channel at all.")),
        (f"{TO_F}{{1}}<|call|>", content(f"{TO_F}{{1}}<|call|>")),
        (f"{TO_F}print(1)<|call|>", content(f"{TO_F}print(1)<|call|>")),
    ],
)  # fmt: skip
def test_messages(text: str, parts: list[object]) -> None:
    assert read_cut(GPT_OSS, text) == parts


def test_channels_are_read_without_tools_and_calls_are_text_then() -> None:
    text = f"{ANALYSIS}Hm.<|end|>{NEXT}{FINAL}Yes.<|return|>"
    assert read(GPT_OSS, [text], tools=()) == thought("Hm.") + content("Yes.")
    assert read(named("gpt_oss"), [text], tools=()) == thought("Hm.") + content("Yes.")
    assert read(GPT_OSS, [f"{TO_F}{{}}<|call|>"], tools=()) == content(f"{TO_F}{{}}<|call|>")


def test_text_of_a_form_stands_in_the_final_channel() -> None:
    ids = {token: number for number, token in enumerate(("<|channel|>", "<|message|>", "<|start|>", "<|end|>"))}
    form = find_answer_format("", ids, tool_call_parser="gpt_oss").text_grammar({"type": "regex", "pattern": "[0-9]"})
    begin, digit = form["format"]["elements"]
    _, channel, name, message = begin["elements"]
    assert [channel["token"], name["value"], message["token"], digit["pattern"]] == [0, "final", 1, "[0-9]"]


def test_gpt_oss_is_known_by_its_template() -> None:
    source = """{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
    {{- " to=functions." + name + "<|channel|>commentary " }} {{- "<|constrain|>json<|message|>" }} {{- "<|call|>" }}"""
    found = find_answer_format(source, {"<|end|>": 1, "<|call|>": 2, "<|endoftext|>": 3})
    assert found.tools is GPT_OSS.tools and found.reasoning is GPT_OSS.reasoning
    assert set(found.kept_tokens) == {"<|end|>", "<|call|>"}

"""Thoughts at the beginning of an answer."""

from __future__ import annotations

import pytest
from templates.parsers.reading import call, content, named, read_cut, thought

THINK = named("hermes", "qwen3")


@pytest.mark.parametrize(
    ("text", "is_thinking", "parts"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", False, thought("Hm.") + content("Yes.")),
        ("Hm.\n</think>\n\nYes.", True, thought("Hm.") + content("Yes.")),
        ("<think>\nHm.\n</think>\n\nYes.", True, thought("Hm.") + content("Yes.")),
        ("<think>\n\n</think>\n\nYes.\n", False, content("Yes.\n")),
        (" <think> cut off ", False, thought("cut off ")),
        ("Yes. <think>a</think>", False, content("Yes. <think>a</think>")),
        ("a </think", True, thought("a </think")),
        (" \n", False, content(" \n")),
        (
            '<think>a <tool_call>{"name": "f"}</tool_call> <think></think>\n<tool_call>{"name": "g"}</tool_call>',
            False,
            thought('a <tool_call>{"name": "f"}</tool_call> <think>') + call(0, "g", "{}"),
        ),
    ],
)
def test_thoughts(text: str, is_thinking: bool, parts: list[object]) -> None:
    assert read_cut(THINK, text, is_thinking=is_thinking) == parts


def test_a_prompt_may_end_inside_a_thought() -> None:
    reasoning = THINK.reasoning
    assert reasoning is not None
    assert reasoning.is_open("<|user|>Hi<|assistant|><think>\n")
    assert not reasoning.is_open("<|assistant|><think>\n\n</think>\n\n")
    assert not reasoning.is_open("<|assistant|>")


def test_gemma_thinks_in_a_channel() -> None:
    text = "<|channel>thought\nHm.\n<channel|>Yes.<|tool_call>call:f{}<tool_call|>"
    assert read_cut(named("gemma4", "gemma4"), text) == thought("Hm.") + content("Yes.") + call(0, "f", "{}")
    assert read_cut(named("gemma4", "gemma4"), "<|channel>thought\n<channel|>Yes.") == content("Yes.")

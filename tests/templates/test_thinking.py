"""What a request says about thinking becomes variables of the chat template, a limit, or an error with its name."""

from __future__ import annotations

from typing import Any

import pytest

from seesay.errors import RequestError
from seesay.templates.thinking import choose_thinking, find_variables

QWEN, DEEPSEEK, GPT_OSS = {"enable_thinking"}, {"thinking"}, {"reasoning_effort"}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("{%- if enable_thinking is defined and enable_thinking is false %}<think>{% endif %}", QWEN),
        ("{% if not thinking is defined %}{% set thinking = false %}{% endif %}", DEEPSEEK),
        ("Reasoning: {{ reasoning_effort }}", GPT_OSS),
        ("thinking {{ message.thinking }} {{ 'thinking' }} {% if message['thinking'] %}{% endif %}", set()),
        ("{{ rethinking }} enable_thinking", set()),
        ("", set()),
        ("{% if enable_thinking %}{{ 'a' }}" + "{{" * 200_000, QWEN),  # hostile, and read in linear time
    ],
)
def test_variables_are_found_in_the_code_of_a_template(source: str, found: set[str]) -> None:
    assert find_variables(source) == found


def choose(variables: set[str], *, thinks: bool = True, **asked: Any) -> tuple[dict[str, Any], int | None]:
    asked = {"enable_thinking": None, "effort": None, "max_tokens": None, **asked}
    options, max_tokens = choose_thinking(frozenset(variables), has_thoughts=thinks, **asked)
    return dict(options), max_tokens


def test_a_switch_gets_the_name_that_the_template_has() -> None:
    assert choose(QWEN) == choose(set()) == ({}, None)
    assert choose(QWEN, enable_thinking=False) == ({"enable_thinking": False}, None)
    assert choose(DEEPSEEK, enable_thinking=True, max_tokens=3) == ({"thinking": True}, 3)
    assert choose(set(), enable_thinking=True) == choose(set(), thinks=False, enable_thinking=False) == ({}, None)


def test_an_effort_is_a_variable_or_a_limit() -> None:
    assert choose(GPT_OSS, effort="low") == ({"reasoning_effort": "low"}, None)
    assert choose({*QWEN, *GPT_OSS}, effort="none") == ({"enable_thinking": False, "reasoning_effort": "none"}, None)
    assert choose(QWEN, effort="none") == ({"enable_thinking": False}, None)
    limits = [choose(QWEN, effort=effort)[1] for effort in ("minimal", "low", "medium", "high", "xhigh", "max")]
    assert limits == [1024, 1024, 8192, 24576, None, None]
    assert choose(QWEN, effort="high", max_tokens=5) == ({"enable_thinking": True}, 5)


@pytest.mark.parametrize(
    ("variables", "asked", "named"),
    [
        (set(), {"enable_thinking": False}, "enable_thinking"),
        (set(), {"effort": "none"}, "reasoning_effort"),
        (set(), {"thinks": False, "enable_thinking": True}, "enable_thinking"),
        (set(), {"thinks": False, "effort": "low"}, "reasoning_effort"),
        (QWEN, {"thinks": False, "max_tokens": 3}, "max_thinking_tokens"),
        (QWEN, {"effort": "odd"}, "reasoning_effort"),
        (QWEN, {"effort": "low", "enable_thinking": False}, "reasoning_effort"),
        (QWEN, {"effort": "none", "enable_thinking": True}, "reasoning_effort"),
    ],
)
def test_what_a_model_cannot_do_is_refused(variables: set[str], asked: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestError) as refused:
        choose(variables, **asked)
    assert refused.value.param == named and named in refused.value.message

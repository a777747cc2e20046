"""The options of a request about thinking, as variables of a model's chat template."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from seesay.errors import ErrorCode, RequestError

EFFORT_TOKENS: Mapping[str, int | None] = {
    "minimal": 1024,
    "low": 1024,
    "medium": 8192,
    "high": 24576,
    "xhigh": None,
    "max": None,
}
"""The longest thought in tokens for each `reasoning_effort` above 'none', where the template takes none; None: no
limit. The numbers are those with which Google's OpenAI-compatible API translates efforts into budgets."""
EFFORTS = ("none", *EFFORT_TOKENS)

_TAG_BEGIN, _TAG_END = re.compile(r"\{[{%]"), re.compile(r"[%}]\}")
_TEXT = re.compile(r"'[^']*'|\"[^\"]*\"")
_SWITCHES = ("enable_thinking", "thinking")
_EFFORT = "reasoning_effort"


class Thinking(NamedTuple):
    """options: variables for the chat template. max_tokens: of the thought; None: no limit."""

    options: Mapping[str, Any]
    max_tokens: int | None


def find_variables(source: str) -> frozenset[str]:
    """Return the variables of a chat template that concern thinking."""
    code = _TEXT.sub("", "\n".join(_find_code(source)))
    return frozenset(name for name in (*_SWITCHES, _EFFORT) if re.search(rf"(?<![\w.]){name}\b", code))


def _find_code(source: str) -> Iterator[str]:
    """Yield what stands in the tags of a template, in linear time."""
    begin = _TAG_BEGIN.search(source)
    while begin is not None:
        end = _TAG_END.search(source, begin.end())
        if end is None:
            return
        yield source[begin.end() : end.start()]
        begin = _TAG_BEGIN.search(source, end.end())


def choose_thinking(
    variables: frozenset[str],
    *,
    has_thoughts: bool,
    enable_thinking: bool | None,
    effort: str | None,
    max_tokens: int | None,
) -> Thinking:
    """Return how a request is to think. `variables` are those of `find_variables`; has_thoughts: whether the model
    marks its thoughts. Raises `RequestError` for what the model cannot do, and names the option."""
    _check(has_thoughts=has_thoughts, enable_thinking=enable_thinking, effort=effort, max_tokens=max_tokens)
    if enable_thinking is not None:
        is_on, name = enable_thinking, "enable_thinking"
    elif effort is not None:
        is_on, name = effort != "none", "reasoning_effort"
    else:
        return Thinking({}, max_tokens)
    options = _choose_switch(variables, is_on=is_on, has_thoughts=has_thoughts, name=name)
    if effort is None:
        return Thinking(options, max_tokens)
    if _EFFORT in variables:
        options[_EFFORT] = effort
    elif is_on and max_tokens is None and has_thoughts:
        max_tokens = EFFORT_TOKENS[effort]
    return Thinking(options, max_tokens)


def _choose_switch(variables: frozenset[str], *, is_on: bool, has_thoughts: bool, name: str) -> dict[str, object]:
    """Return the template's variable that turns thinking on or off, if it has one. Raises `RequestError`, naming the
    option `name`, for a model that can do only the other."""
    switch = next((switch for switch in _SWITCHES if switch in variables), None)
    if switch is not None:
        return {switch: is_on}
    if is_on and not has_thoughts and _EFFORT not in variables:
        _fail(f"{name}: this model does not think", name)
    if not is_on and has_thoughts and _EFFORT not in variables:
        _fail(f"{name}: the thoughts of this model cannot be turned off; max_thinking_tokens limits them", name)
    return {}


def _check(*, has_thoughts: bool, enable_thinking: bool | None, effort: str | None, max_tokens: int | None) -> None:
    if effort is not None and effort not in EFFORTS:
        _fail(f"reasoning_effort must be one of {', '.join(EFFORTS)}, got {effort[:60]!r}", "reasoning_effort")
    if max_tokens is not None and not has_thoughts:
        _fail("max_thinking_tokens: this model has no thoughts that could be limited", "max_thinking_tokens")
    if None not in (enable_thinking, effort) and enable_thinking == (effort == "none"):
        _fail(f"enable_thinking={enable_thinking} and reasoning_effort={effort!r} contradict", "reasoning_effort")


def _fail(message: str, param: str) -> None:
    raise RequestError(ErrorCode.INVALID_REQUEST, message, param)

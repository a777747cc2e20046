"""The thoughts of a model's answers: what a request says about them, and the rule that its answer follows."""

from __future__ import annotations

import logging
from enum import Enum, auto
from typing import TYPE_CHECKING

from seesay.errors import ErrorCode, RequestError
from seesay.templates.thinking import Thinking, choose_thinking, find_variables
from seesay.values import GenerationRequest, Message, TextPart, ThoughtRule

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from seesay.processors.text.tokenizer import Tokenizer
    from seesay.templates import ChatTemplate
    from seesay.templates.parsers.reasoning import ReasoningFormat

logger = logging.getLogger("seesay")

_TAIL_TOKENS = 32
"""Of the end of a prompt, more than a marker and the white space behind it have."""


class _Prompt(Enum):
    """Whether the end of a prompt begins a thought, rules one out, or does neither."""

    PLAIN = auto()
    OPEN = auto()
    CLOSED = auto()


class Thoughts:
    """Of one model with one chat template. `reasoning`: how it marks its thoughts; None where it has none."""

    def __init__(self, reasoning: ReasoningFormat | None, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._variables = find_variables("\n".join(template.sources))
        self._markers: tuple[str, str] | None = None
        if reasoning is not None:
            self._markers = reasoning.begin, reasoning.end
            self._begin_ids, self._end_ids = map(self._encode_marker, self._markers)
            if not (self._begin_ids and self._end_ids):
                logger.warning("the tokenizer cannot spell %s and %s: thoughts are not limited", *self._markers)
                self._markers = None

    def _encode_marker(self, marker: str) -> tuple[int, ...]:
        """Return the tokens of a marker: the one that has this name, or some that spell it, special ones by
        their names; none where none do."""
        token_id = self._tokenizer.token_id(marker)
        if token_id is not None and token_id in self._tokenizer.added_tokens:
            return (token_id,)
        ids = tuple(self._tokenizer.encode(marker))
        names = self._tokenizer.added_tokens
        spelled = [names[one].encode() if one in names else self._tokenizer.spelling.spell(one) for one in ids]
        return ids if b"".join(spelled).endswith(marker.encode()) else ()

    def choose(self, request: GenerationRequest) -> Thinking:
        """Return how a request is to think. Raises `RequestError` for what the model cannot do."""
        own = request.chat_template
        if request.continuation and request.gen_config.max_thinking_tokens is not None:
            message = "max_thinking_tokens is not supported where an answer is generated in parts, as beams are"
            raise RequestError(ErrorCode.INVALID_REQUEST, message, "max_thinking_tokens")
        return choose_thinking(
            self._variables if own is None else find_variables(own),
            has_thoughts=self._markers is not None,
            enable_thinking=request.enable_thinking,
            effort=request.reasoning_effort,
            max_tokens=request.gen_config.max_thinking_tokens,
        )

    def make_rule(
        self, request: GenerationRequest, token_ids: npt.NDArray[np.int64], max_tokens: int | None
    ) -> ThoughtRule | None:
        """Return the rule for the thought of an answer to a prompt of `token_ids`; None where none is to come. A raw
        prompt leads to a thought only where that is limited."""
        is_raw = isinstance(request.prompt, str) or not isinstance(request.prompt[0], Message)
        if self._markers is None or (is_raw and max_tokens is None):
            return None
        begin, end = self._markers
        prompt = self._read_prompt(request, token_ids)
        if prompt is _Prompt.CLOSED:
            return None
        return ThoughtRule(
            begin=begin,
            end=end,
            begin_ids=self._begin_ids,
            end_ids=self._end_ids,
            is_open=prompt is _Prompt.OPEN,
            max_tokens=max_tokens,
        )

    def _read_prompt(self, request: GenerationRequest, token_ids: npt.NDArray[np.int64]) -> _Prompt:
        """Look at what stands behind the last turn: nothing that was said before opens or closes a thought."""
        assert self._markers is not None
        begin, end = self._markers
        tail = self._tokenizer.decode(token_ids[-_TAIL_TOKENS:], skip_special_tokens=False).rstrip()
        if tail.endswith(end):
            return _Prompt.CLOSED
        if tail.endswith(begin):
            return _Prompt.OPEN
        text = _find_open_text(request).lstrip()
        if not text:
            return _Prompt.PLAIN
        return _Prompt.OPEN if text.startswith(begin) and end not in text else _Prompt.CLOSED


def _find_open_text(request: GenerationRequest) -> str:
    """Return the text of the last message if that is the beginning of the answer; else an empty one."""
    last = request.prompt[-1]
    if not request.template_options.get("continue_final") or not isinstance(last, Message):
        return ""
    return "".join(part.text for part in last.parts if isinstance(part, TextPart))

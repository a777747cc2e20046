"""The formats of answers follow the tokenizer and the chat template, which may be replaced between requests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from demo_model import TOKENIZER, load_changed
from thinking import OPENED, SWITCHED

from seesay.config import GenerationConfig
from seesay.engine.front.text_frontend import TextFrontend
from seesay.errors import ConfigError, RequestError
from seesay.templates import ChatTemplate, JinjaTemplate
from seesay.templates.parsers.choose import REASONING_FORMATS, TOOL_FORMATS
from seesay.values import GenerationRequest, Message, TextPart

THINKS = GenerationRequest(
    prompt=(Message(role="user", parts=(TextPart(text="hi"),)),),
    gen_config=GenerationConfig(max_thinking_tokens=6),
    enable_thinking=False,
)


def make_template(source: str = "{{ messages[0].content }}") -> ChatTemplate:
    return JinjaTemplate("own", source)


def has_thoughts(texts: TextFrontend) -> bool:
    return texts.answer_format.reasoning is not None


def takes_thoughts(texts: TextFrontend) -> bool:
    try:
        return texts.thoughts.choose(THINKS).options == {"enable_thinking": False}
    except RequestError:
        return False


def test_a_template_that_is_replaced_has_its_own_formats() -> None:
    plain, switched = make_template(), make_template(SWITCHED)
    texts = TextFrontend(TOKENIZER, plain)
    assert texts.chat_template is plain and not has_thoughts(texts) and not takes_thoughts(texts)
    texts.chat_template = switched
    assert texts.chat_template is switched and has_thoughts(texts) and takes_thoughts(texts)
    texts.chat_template = plain
    assert not has_thoughts(texts) and not takes_thoughts(texts)


def test_a_tokenizer_that_is_replaced_has_its_own_special_tokens(tmp_path: Path) -> None:
    texts = TextFrontend(TOKENIZER, make_template(SWITCHED))
    assert texts.tokenizer is TOKENIZER and texts.answer_format.special_ids == {}
    names = ["<think>", "</think>"]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": 27 + 2 * number, "content": name, "special": True, **flags} for number, name in enumerate(names)]
    state = TOKENIZER.backend.get_added_tokens_decoder()
    known = [{"id": i, "content": token.content, "special": True, **flags} for i, token in state.items()]
    tokenizer = load_changed(tmp_path, added_tokens=[*known, *added])
    texts.tokenizer = tokenizer
    assert texts.tokenizer is tokenizer
    assert texts.answer_format.special_ids == {name: tokenizer.token_id(name) for name in names}
    rule = texts.thoughts.make_rule(THINKS, np.array(tokenizer.encode("hi")), 6)
    assert rule is not None and rule.begin_ids == (tokenizer.token_id("<think>"),)


def test_names_of_formats_hold_for_any_template() -> None:
    texts = TextFrontend(TOKENIZER, make_template(), tool_call_parser="mistral", reasoning_parser="kimi_vl")
    found = texts.answer_format
    assert found.reasoning is REASONING_FORMATS["kimi_vl"] and found.tools is TOOL_FORMATS["mistral"]
    texts.chat_template = make_template(OPENED)
    assert texts.answer_format == found


@pytest.mark.parametrize("option", ["tool_call_parser", "reasoning_parser"])
def test_names_that_are_not_known_are_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option}.*odd"):
        TextFrontend(TOKENIZER, make_template(), **{option: "odd"})

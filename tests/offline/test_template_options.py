"""Variables of the chat template, tools and documents in calls of the pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from seesay import EngineConfig, GenerationConfig, Pipeline, pipeline

TEMPLATE = """{% for m in messages %}{{ m.content }}{% endfor %}
{%- if brief %} {{ 'Be brief. ' * brief }}{% endif %}
{%- for tool in tools or [] %} {{ tool | tojson }}{% endfor %}
{%- for document in documents or [] %} {{ document.text }}{% endfor %}"""
GREEDY = GenerationConfig(max_new_tokens=1, do_sample=False)
TOOL = {"type": "function", "function": {"name": "look"}}


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    file = tmp_path_factory.mktemp("template") / "own.jinja"
    file.write_text(TEMPLATE)
    config = EngineConfig(device_type="cpu", session_len=512)
    with pipeline("seesay-demo", backend_config=config, chat_template_config=file) as made:
        yield made


def count(pipe: Pipeline, text: str) -> int:
    return len(pipe.tokenizer.encode(text))


@pytest.mark.parametrize(
    ("options", "added"),
    [
        ({}, ""),
        ({"chat_template_kwargs": None, "tools": None}, ""),
        ({"chat_template_kwargs": {"brief": 2}}, " Be brief. Be brief. "),
        ({"chat_template_kwargs": {"brief": 0, "unused": "x"}}, ""),
        ({"tools": [TOOL]}, ' {"type": "function", "function": {"name": "look"}}'),
        ({"documents": [{"text": "a paper"}]}, " a paper"),
        ({"chat_template_kwargs": {"documents": [{"text": "a paper"}]}}, " a paper"),
    ],
)
def test_the_template_gets_them(options: dict[str, Any], added: str, pipe: Pipeline) -> None:
    expected = [count(pipe, text + added) for text in ("hello", "how many?")]
    assert [out.input_token_len for out in pipe(["hello", "how many?"], GREEDY, **options)] == expected
    assert pipe("hello", GREEDY, **options).input_token_len == expected[0]
    streamed = list(pipe.stream_infer("hello", gen_config=GREEDY, **options))
    assert streamed[-1].input_token_len == expected[0]
    assert pipe.chat("hello", gen_config=GREEDY, **options).response.input_token_len == expected[0]
    answer = asyncio.run(pipe.async_batch_infer("hello", GREEDY, **options))
    assert answer.input_token_len == expected[0]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"chat_template_kwargs": "brief"}, TypeError, "chat_template_kwargs must be a dict"),
        ({"chat_template_kwargs": {1: 2}}, TypeError, "chat_template_kwargs must be a dict"),
        ({"chat_template_kwargs": {"messages": []}}, ValueError, "'messages' cannot be set"),
        ({"tools": "look"}, TypeError, "tools must be a list of dicts"),
        ({"tools": ["look"]}, TypeError, "tools must be a list of dicts"),
        ({"documents": {"text": "a"}}, TypeError, "documents must be a list of dicts"),
        ({"tools": [TOOL], "do_preprocess": False}, ValueError, "tools requires do_preprocess=True"),
        ({"chat_template_args": {}}, TypeError, "unexpected keyword argument 'chat_template_args'"),
    ],
)
def test_what_cannot_be_passed_is_refused(
    options: dict[str, Any], error: type[Exception], message: str, pipe: Pipeline
) -> None:
    with pytest.raises(error, match=message):
        pipe("hello", GREEDY, **options)


def test_a_template_without_options_refuses_them(pipe: Pipeline) -> None:
    own = pipe.chat_template
    pipe.chat_template = "chatml"  # type: ignore[assignment]
    try:
        out = pipe("hello", GREEDY, chat_template_kwargs={"enable_thinking": False})
    finally:
        pipe.chat_template = own
    assert (out.finish_reason, "enable_thinking" in out.text) == ("error", True)

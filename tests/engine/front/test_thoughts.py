"""Answers with thoughts: limits and grammars hold however the marker is written and the answer is computed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from thinking import BEGIN, FINISH, OPENED, SWITCHED, Markers, write_thinking

from seesay import EngineConfig, GenerationConfig, Pipeline, pipeline
from seesay.engine.front.response import Response
from seesay.engine.front.thoughts import Thoughts
from seesay.templates.parsers.reasoning import ReasoningFormat
from seesay.values import GenerationRequest, Message, TextPart

TAG = {
    "type": "structural_tag",
    "format": {"type": "sequence", "elements": [
        {"type": "const_string", "value": "n: "}, {"type": "regex", "pattern": "(yes|no){1,3}"}
    ]},
}  # fmt: skip
REGEX = {"type": "regex_schema", "regex_schema": "(yes|no){1,3}"}
LIMITED: dict[str, Any] = {"max_new_tokens": 24, "max_thinking_tokens": 6, "skip_special_tokens": False}
WAYS: dict[str, dict[str, Any]] = {
    "not ahead": {"async_scheduling": False},
    "preempted": {"max_prefill_token_num": 7, "num_gpu_blocks": 10, "block_size": 16, "session_len": 128},
    "process": {"engine_process": True},
}

Open = Callable[..., Pipeline]


@pytest.fixture(scope="module")
def open_pipe(tiny_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """`open_pipe(markers, template, **options)` is a pipeline, opened once for the file."""
    opened: dict[str, Pipeline] = {}

    def get(markers: Markers = "special", template: str = SWITCHED, **options: Any) -> Pipeline:
        key = f"{markers} {template == OPENED} {sorted(options.items())}"
        if key not in opened:
            path = tmp_path_factory.mktemp("model") / "model"
            write_thinking(tiny_checkpoint("qwen3"), path, markers=markers, template=template)
            config = EngineConfig(**{"device_type": "cpu", "block_size": 16, "session_len": 512, **options})
            opened[key] = pipeline(str(path), config)
        return opened[key]

    yield get
    for pipe in opened.values():
        pipe.close()


def drawn(seed: int, **options: Any) -> GenerationConfig:
    options = {**LIMITED, **options}
    return GenerationConfig(do_sample=True, temperature=1.0, top_k=4, random_seed=seed, **options)


def end_ids(pipe: Pipeline) -> list[int]:
    return pipe.tokenizer.encode(FINISH)


@pytest.mark.parametrize("markers", ["special", "added", "spelled"])
def test_a_thought_ends_at_its_limit(open_pipe: Open, markers: Markers) -> None:
    pipe = open_pipe(markers, OPENED, async_scheduling=True)
    finish = end_ids(pipe)
    assert (len(finish) == 1) == (markers != "spelled")
    free = pipe("hello", gen_config=drawn(1, max_thinking_tokens=None, ignore_eos=True))
    for limit in (0, 1, 6):
        one = pipe("hello", gen_config=drawn(1, max_thinking_tokens=limit, ignore_eos=True))
        assert one.token_ids[:limit] == free.token_ids[:limit]
        assert one.token_ids[limit : limit + len(finish)] == finish and len(one.token_ids) == 24
        assert one.text.count(FINISH) == 1


@pytest.mark.parametrize(
    "way", ["preempted", *(pytest.param(way, marks=pytest.mark.slow) for way in WAYS if way != "preempted")]
)
def test_limits_and_grammars_hold_however_answers_are_computed(open_pipe: Open, way: str) -> None:
    def ask(pipe: Pipeline) -> list[Response]:
        plain = GenerationConfig(max_new_tokens=80, ignore_eos=True)  # 128 with the prompt: two do not fit
        configs = [
            config
            for seed in range(3)
            for config in (
                drawn(seed, presence_penalty=0.5, repetition_penalty=1.1),
                drawn(seed, response_format=REGEX),
                drawn(seed, response_format=TAG, frequency_penalty=0.5),
                plain,
            )
        ]
        return pipe(["what is it that you see there?"] * len(configs), gen_config=configs)

    expected = ask(open_pipe("special", OPENED, async_scheduling=True))
    for one in expected[1::4] + expected[2::4]:
        _, found, answer = one.text.partition(FINISH)
        assert found and re.fullmatch("(n: )?(yes|no){1,3}", answer), one.text
    other = open_pipe("special", OPENED, **WAYS[way])
    assert [one.token_ids for one in ask(other)] == [one.token_ids for one in expected]
    if way == "preempted":
        assert other.engine.stats().total_preemptions > 0


@pytest.mark.parametrize("markers", ["special", "spelled"])
def test_a_thought_may_begin_beside_a_grammar(open_pipe: Open, markers: Markers) -> None:
    pipe = open_pipe(markers, SWITCHED, async_scheduling=True)
    begin_ids = pipe.tokenizer.encode(BEGIN)
    ids = dict.fromkeys(begin_ids, 100.0)
    thinks = pipe("hello", gen_config=drawn(1, response_format=REGEX, logit_bias=ids, max_new_tokens=60))
    assert thinks.token_ids[: len(begin_ids)] == begin_ids
    limit = LIMITED["max_thinking_tokens"]
    finish = end_ids(pipe)
    assert thinks.token_ids[len(begin_ids) + limit :][: len(finish)] == finish
    assert re.fullmatch("(yes|no){1,3}", thinks.text.rpartition(FINISH)[2].removesuffix("<|im_end|>"))
    against = dict.fromkeys(begin_ids, -100.0)
    answers = pipe("hello", gen_config=drawn(1, response_format=REGEX, logit_bias=against))
    assert re.fullmatch("(yes|no){1,3}", answers.text.removesuffix("<|im_end|>"))


def test_a_prompt_that_closes_the_thought_begins_outside(open_pipe: Open) -> None:
    pipe = open_pipe("special", SWITCHED, async_scheduling=True)
    bias = {pipe.tokenizer.encode(BEGIN)[0]: 100.0}
    config = drawn(1, response_format=REGEX, logit_bias=bias)
    for options in ({"enable_thinking": False}, {"reasoning_effort": "none"}):
        answer = pipe("hello", gen_config=config, **options)
        assert re.fullmatch("(yes|no){1,3}", answer.text.removesuffix("<|im_end|>"))
    assert pipe("hello", gen_config=config, enable_thinking=True).text.startswith(BEGIN)


def test_an_answer_does_not_end_in_a_thought_before_a_grammar(open_pipe: Open) -> None:
    pipe = open_pipe("special", OPENED, async_scheduling=True)
    eos = pipe.tokenizer.token_id("<|im_end|>")
    bias = {eos: 100.0}
    ended = pipe("hello", gen_config=drawn(1, logit_bias=bias, max_thinking_tokens=None))
    assert ended.finish_reason == "stop" and len(ended.token_ids) <= 1
    held = pipe("hello", gen_config=drawn(1, logit_bias=bias, response_format=REGEX))
    assert held.finish_reason == "stop" and re.fullmatch("yes|no", held.text.partition(FINISH)[2])


def test_the_limit_needs_no_compiler(open_pipe: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    pipe = open_pipe("added", OPENED, max_batch_size=3)
    one = pipe("hello", gen_config=drawn(2, max_thinking_tokens=3))
    assert one.token_ids[3:4] == end_ids(pipe)


def test_what_users_type_opens_no_thought(open_pipe: Open) -> None:
    pipe = open_pipe("spelled", SWITCHED, async_scheduling=True)
    config = drawn(1, max_thinking_tokens=0, ignore_eos=True, max_new_tokens=6)
    free = drawn(1, max_thinking_tokens=None, ignore_eos=True, max_new_tokens=6)
    for prompt in (
        "what is <think>",
        "</think>",
        [{"role": "assistant", "content": BEGIN}, {"role": "user", "content": "?"}],
    ):
        assert pipe(prompt, gen_config=config).token_ids == pipe(prompt, gen_config=free).token_ids


@pytest.mark.parametrize(
    ("options", "fields", "named"),
    [
        ({"max_thinking_tokens": 3}, {}, "max_thinking_tokens"),
        ({}, {"enable_thinking": True}, "enable_thinking"),
        ({}, {"reasoning_effort": "high"}, "reasoning_effort"),
        ({}, {"reasoning_effort": "odd"}, "reasoning_effort must be one of none, minimal"),
        ({}, {"reasoning_effort": "none", "enable_thinking": True}, "contradict"),
    ],
)
def test_a_model_without_thoughts_refuses_them_by_name(
    tiny_checkpoint: Callable[[str], Path], options: dict[str, Any], fields: dict[str, Any], named: str
) -> None:
    with pipeline(str(tiny_checkpoint("qwen3")), EngineConfig(device_type="cpu", session_len=64)) as pipe:
        one = pipe("hello", gen_config=GenerationConfig(max_new_tokens=2, **options), **fields)
        assert one.finish_reason == "error" and named in one.text
        assert (
            pipe("hello", gen_config=GenerationConfig(max_new_tokens=2), enable_thinking=False).finish_reason != "error"
        )


@pytest.mark.parametrize("markers", ["special", "spelled"])
def test_reasoning_tokens_are_counted(open_pipe: Open, markers: Markers) -> None:
    pipe = open_pipe(markers, OPENED, async_scheduling=True)
    one = pipe("hello", gen_config=drawn(1, ignore_eos=True))
    assert one.usage is not None
    assert (one.usage.reasoning_tokens, one.usage.completion_tokens) == (LIMITED["max_thinking_tokens"], 24)
    cut = pipe("hello", gen_config=drawn(1, ignore_eos=True, max_thinking_tokens=None, max_new_tokens=9))
    assert cut.usage is not None and cut.usage.reasoning_tokens == 9


@pytest.mark.parametrize(
    ("begun", "is_open"),
    [
        (None, False),
        ("", False),
        (f"{BEGIN}so", True),
        (f" {BEGIN}so", True),
        ("so", None),
        (f"{BEGIN}so{FINISH}ab", None),
    ],
)
def test_an_answer_that_is_begun_may_be_in_its_thought(
    open_pipe: Open, begun: str | None, is_open: bool | None
) -> None:
    """None: no thought comes any more. Without a beginning, one may come."""
    pipe = open_pipe("special", SWITCHED, async_scheduling=True)
    thoughts = Thoughts(ReasoningFormat(name="x", begin=BEGIN, end=FINISH), pipe.tokenizer, pipe.engine.chat_template)
    messages = [Message(role="user", parts=(TextPart(text="Hi"),))]
    if begun is not None:
        messages.append(Message(role="assistant", parts=(TextPart(text=begun),)))
    request = GenerationRequest(
        prompt=tuple(messages), gen_config=GenerationConfig(), template_options={"continue_final": begun is not None}
    )
    rule = thoughts.make_rule(request, np.array(pipe.tokenizer.encode("Hi")), 3)
    assert rule is None if is_open is None else rule is not None and rule.is_open is is_open


def test_a_marker_of_special_tokens_and_a_word_begins_a_thought(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """As Gemma 4's `<|channel>thought` and gpt-oss's `<|channel|>analysis<|message|>`."""
    path = write_thinking(tiny_checkpoint("qwen3"), tmp_path / "model")
    config = EngineConfig(device_type="cpu", block_size=16, session_len=512)
    with pipeline(str(path), config) as pipe:
        reasoning = ReasoningFormat(name="x", begin=f"{BEGIN}ab{BEGIN}", end=FINISH)
        thoughts = Thoughts(reasoning, pipe.tokenizer, pipe.engine.chat_template)
        request = GenerationRequest(
            prompt=(Message(role="user", parts=(TextPart(text="Hi"),)),), gen_config=GenerationConfig()
        )
        rule = thoughts.make_rule(request, np.array(pipe.tokenizer.encode("Hi")), 3)
        assert rule is not None
        [begin] = pipe.tokenizer.encode(BEGIN)
        assert rule.begin_ids[0] == rule.begin_ids[-1] == begin and len(rule.begin_ids) >= 3

"""Text that a grammar leaves no choice about is computed several tokens at a time, and no answer is another for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import wait_until

from seesay import EngineConfig, GenerationConfig, Pipeline, pipeline
from seesay.engine.core.grammars.jumps import JumpRule
from seesay.engine.front.response import Response
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import Row
from seesay.llm.running.launched_step import LaunchedStep, StepResult
from seesay.values import Usage

INVOICE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "invoice_number": {"type": "integer", "minimum": 0, "maximum": 9999},
        "customer_name": {"type": "string", "maxLength": 8},
        "is_paid": {"type": "boolean"},
        "currency": {"enum": ["euro", "dollar"]},
    },
    "required": ["invoice_number", "customer_name", "is_paid", "currency"],
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "invoice", "schema": INVOICE}}
SENTENCE = "I see no picture. Please send one."
FORMS: tuple[Mapping[str, Any] | None, ...] = (
    SCHEMA,
    {"type": "choice", "choice": [SENTENCE]},
    None,
    {"type": "regex_schema", "regex_schema": "(The colour is (red|green|gold)(, really)?)+"},
)


@pytest.fixture(scope="module")
def pipe() -> Iterator[Pipeline]:
    """One without graphs, on any device."""
    config = EngineConfig(device_type="cpu", async_scheduling=True, session_len=512, eager_mode=True)
    with pipeline("seesay-demo", config) as pipe:
        yield pipe


@pytest.fixture(scope="module")
def expected(pipe: Pipeline) -> tuple[list[list[int]], int]:
    """The answers of `ask_all`, and how many of their tokens took no step."""
    before = pipe.engine.stats().total_jumped_tokens
    return ask_all(pipe), pipe.engine.stats().total_jumped_tokens - before


@pytest.fixture(scope="module")
def stepping() -> Iterator[Pipeline]:
    """One whose steps bring one token of each row."""
    config = EngineConfig(device_type="cpu", async_scheduling=True, session_len=512, jump_ahead=False)
    with pipeline("seesay-demo", config) as pipe:
        yield pipe


def make_config(form: Mapping[str, Any] | None, **options: Any) -> GenerationConfig:
    return GenerationConfig(**{"response_format": form, "max_new_tokens": 80, **options})


def ask(pipe: Pipeline, config: GenerationConfig) -> tuple[Response, int, int]:
    """An answer, the steps that it took, and the tokens among its own that took none."""
    before = pipe.engine.stats()
    answer = pipe("What is it?", gen_config=config)
    after = pipe.engine.stats()
    steps = [sum(number for _, number in stats.step_sizes) for stats in (before, after)]
    return answer, steps[1] - steps[0], after.total_jumped_tokens - before.total_jumped_tokens


def ask_all(pipe: Pipeline) -> list[list[int]]:
    """Answers of all forms beside each other."""
    configs = [make_config(form, do_sample=True, top_k=4, random_seed=seed) for seed in range(2) for form in FORMS]
    answers = pipe(["What is it?"] * len(configs), gen_config=configs)
    for answer, config in zip(answers, configs, strict=True):
        assert answer.finish_reason in ("stop", "length"), answer
        if config.response_format == SCHEMA:
            assert list(json.loads(answer.text)) == list(INVOICE["properties"])
    return [answer.token_ids for answer in answers]


def usage_of(answer: Response) -> Usage:
    assert answer.usage is not None
    return answer.usage


def limit_as_with_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = JumpRule.choose
    monkeypatch.setattr(JumpRule, "choose", lambda rule, *others: choose(replace(rule, has_graphs=True), *others))


def test_forced_text_takes_few_steps(pipe: Pipeline, stepping: Pipeline) -> None:
    answer, num_steps, num_jumped = ask(pipe, make_config(SCHEMA))
    assert answer.finish_reason == "stop" and list(json.loads(answer.text)) == list(INVOICE["properties"])
    assert num_steps < len(answer.token_ids) // 3 and num_jumped > len(answer.token_ids) // 2
    plain, num_steps, num_jumped = ask(stepping, make_config(SCHEMA))
    assert num_steps >= len(plain.token_ids) and num_jumped == 0
    sentence = make_config(FORMS[1])
    answer, num_steps, _ = ask(pipe, sentence)
    assert answer.text == SENTENCE == ask(stepping, sentence)[0].text
    assert answer.token_ids == pipe.tokenizer.encode(SENTENCE) and num_steps < 8


@pytest.mark.parametrize("way", ["one by one", "as with graphs", "not ahead"])
def test_forced_tokens_are_the_same_however_many_are_computed_together(
    pipe: Pipeline, expected: tuple[list[list[int]], int], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    answers, num_jumped = expected
    assert num_jumped > 100
    if way == "not ahead":
        options: dict[str, Any] = {"async_scheduling": False, "block_size": 16, "eager_mode": True}
        config = EngineConfig(device_type="cpu", session_len=512, **options)
        with pipeline("seesay-demo", config) as other:
            assert ask_all(other) == answers
            assert other.engine.stats().total_jumped_tokens == num_jumped
        return
    if way == "one by one":
        monkeypatch.setattr(JumpRule, "choose", lambda rule, num_rows, found: {})
    else:
        limit_as_with_graphs(monkeypatch)
    before = pipe.engine.stats().total_jumped_tokens
    assert ask_all(pipe) == answers
    num_less = pipe.engine.stats().total_jumped_tokens - before
    assert num_less == 0 if way == "one by one" else 0 < num_less < num_jumped


@pytest.mark.parametrize("has_graphs", [False, True])
def test_a_failed_step_changes_no_jump(
    pipe: Pipeline, expected: tuple[list[list[int]], int], monkeypatch: pytest.MonkeyPatch, has_graphs: bool
) -> None:
    """A row that is computed again alone, with a step behind it, brings the tokens with which that one began."""
    if has_graphs:
        limit_as_with_graphs(monkeypatch)
    collect, calls = LaunchedStep.collect, count(1)

    def fail(step: LaunchedStep) -> StepResult:
        if next(calls) % 4 == 0 and len(step.step.rows) > 1:
            raise RuntimeError("a bad moment")
        return collect(step)

    monkeypatch.setattr(LaunchedStep, "collect", fail)
    assert ask_all(pipe) == expected[0]
    assert next(calls) > 20


def test_a_row_that_is_computed_again_alone_repeats_its_jump(
    pipe: Pipeline, expected: tuple[list[list[int]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that alone would save too few steps: the next plan may have begun with its tokens already."""
    limit_as_with_graphs(monkeypatch)
    collect, num_failed = LaunchedStep.collect, 0

    def fail(step: LaunchedStep) -> StepResult:
        nonlocal num_failed
        if len(step.step.rows) > 1 and any(len(token_ids) < 5 for token_ids in step.jumps.values()):
            num_failed += 1
            raise RuntimeError("a bad moment")
        return collect(step)

    monkeypatch.setattr(LaunchedStep, "collect", fail)
    for _ in range(20):  # which rows a step has depends on when their requests come
        assert ask_all(pipe) == expected[0]
        if num_failed:
            return
    raise AssertionError("no step failed")


def test_a_jump_ends_with_the_answer(pipe: Pipeline) -> None:
    whole = ask(pipe, make_config(FORMS[1]))[0].token_ids
    for most in range(1, len(whole)):
        answer, _, num_jumped = ask(pipe, make_config(FORMS[1], max_new_tokens=most))
        assert (answer.token_ids, answer.finish_reason) == (whole[:most], "length")
        assert usage_of(answer).completion_tokens == most and num_jumped <= most - 1
    num_prompt = usage_of(answer).prompt_tokens
    with pipeline("seesay-demo", EngineConfig(device_type="cpu", session_len=num_prompt + 5)) as short:
        answer, _, num_jumped = ask(short, make_config(FORMS[1]))
        assert (answer.token_ids, answer.finish_reason) == (whole[:5], "length") and num_jumped > 0


def test_a_stop_word_within_forced_text_ends_the_answer(pipe: Pipeline) -> None:
    whole = ask(pipe, make_config(FORMS[1]))[0].token_ids
    config = make_config(FORMS[1], stop_words=["no pict"])
    answer, _, num_jumped = ask(pipe, config)
    assert (answer.text, answer.finish_reason) == ("I see ", "stop") and num_jumped
    assert answer.token_ids == whole[: len(answer.token_ids)] and len(answer.token_ids) < len(whole)
    assert usage_of(answer).completion_tokens == len(answer.token_ids)
    assert "no pict" in pipe.tokenizer.decode(answer.token_ids)
    assert "no pict" not in pipe.tokenizer.decode(answer.token_ids[:-1])
    pieces = list(pipe.stream_infer("What is it?", gen_config=config))
    assert "".join(piece.text for piece in pieces) == "I see "
    whole_pieces = list(pipe.stream_infer("What is it?", gen_config=make_config(FORMS[1])))
    assert "".join(piece.text for piece in whole_pieces) == SENTENCE
    assert [token_id for piece in whole_pieces for token_id in piece.token_ids] == whole


def test_nothing_is_forced_where_single_tokens_are_weighed(pipe: Pipeline, stepping: Pipeline) -> None:
    token_id = pipe.tokenizer.encode("picture")[-1]
    for options in (
        {"logit_bias": {token_id: -2.0}},
        {"bad_token_ids": [token_id]},
        {"bad_words": ["blue"]},
        {"no_repeat_ngram_size": 8},
        {"logits_processors": [lambda token_ids, logits: logits]},
    ):
        config = make_config(FORMS[1], **options)
        answer, _, num_jumped = ask(pipe, config)
        assert num_jumped == 0, options
        expected = ask(stepping, config)[0]
        assert (answer.token_ids, answer.finish_reason) == (expected.token_ids, expected.finish_reason), options


def test_a_stop_token_that_stands_in_texts_ends_the_answer(pipe: Pipeline, stepping: Pipeline) -> None:
    """It is not forced: the model may spell the text otherwise."""
    [comma] = pipe.tokenizer.encode(",")
    config = make_config(SCHEMA, stop_token_ids=[comma])
    answer, _, _ = ask(pipe, config)
    assert (answer.finish_reason, comma in answer.token_ids) == ("stop", False)
    assert re.fullmatch(r'\{"invoice_number": \d+', answer.text), answer.text
    assert ask(stepping, config)[0].text == answer.text
    whole = ask(pipe, make_config(FORMS[1]))[0].token_ids
    answer, _, num_jumped = ask(pipe, make_config(FORMS[1], stop_token_ids=[whole[3]]))
    assert whole[3] not in answer.token_ids and num_jumped == 0 and SENTENCE.startswith(answer.text)


def test_asking_about_single_tokens_changes_none(pipe: Pipeline) -> None:
    plain, _, num_jumped = ask(pipe, make_config(SCHEMA))
    assert num_jumped
    for options in (
        {"logprobs": 2},
        {"output_logits": "generation"},
        {"output_last_hidden_state": "generation"},
        {"prompt_logprobs": 1},
    ):
        answer, _, num_asked_jumped = ask(pipe, make_config(SCHEMA, **options))
        assert answer.token_ids == plain.token_ids, options
        assert num_asked_jumped == (num_jumped if "prompt_logprobs" in options else 0), options
        if "logprobs" in options:
            assert answer.logprobs is not None
            pairs = list(zip(answer.token_ids, answer.logprobs))
            assert len(pairs) == len(plain.token_ids) and all(token_id in found for token_id, found in pairs)
        if "output_logits" in options:
            assert answer.logits is not None and len(answer.logits) == len(plain.token_ids) + 1  # the end, too
    drawn = make_config(SCHEMA, do_sample=True, temperature=1.0, top_k=4, random_seed=3)
    best, *others = ask(pipe, replace(drawn, n=3, best_of=3))[0].choices
    assert [one.token_ids for one in sorted([best, *others], key=lambda one: one.choice_index)] == [
        one.token_ids for one in sorted(ask(pipe, replace(drawn, n=3))[0].choices, key=lambda one: one.choice_index)
    ]


def test_the_prefix_cache_has_the_tokens_of_a_jump(pipe: Pipeline) -> None:
    """The next turn finds what the answer computed, and goes on as if all of it were computed again."""
    text = "Another sentence of which every word is known beforehand, and which fills some blocks of the cache."
    config = make_config({"type": "choice", "choice": [text]})
    prompt = [{"role": "user", "content": "What is it now?"}]
    answer = pipe(prompt, gen_config=config)
    again = pipe(prompt, gen_config=config)
    assert again.token_ids == answer.token_ids and len(answer.token_ids) > 20
    turns = [*prompt, {"role": "assistant", "content": text}, {"role": "user", "content": "Sure?"}]
    found, (first, second) = usage_of(answer), [pipe(turns, gen_config=config) for _ in range(2)]
    assert usage_of(first).cached_tokens > found.prompt_tokens + found.completion_tokens - 2 * 16
    assert first.token_ids == second.token_ids == answer.token_ids
    plain = make_config(None, max_new_tokens=12)
    before = pipe(turns, gen_config=plain).token_ids
    pipe.engine.reset_caches()
    assert pipe(turns, gen_config=plain).token_ids == before


def test_an_abort_within_a_jump_leaves_nothing(pipe: Pipeline) -> None:
    """The rows of the others go on, and all blocks are given back."""
    text = "one two three " * 90  # two jumps
    held, other = make_config({"type": "choice", "choice": [text]}, max_new_tokens=400), make_config(SCHEMA)
    expected = pipe("What is it?", gen_config=other).token_ids
    stream = pipe.stream_infer("What is it?", gen_config=held)
    first = next(iter(stream))
    assert first.finish_reason is None and len(first.token_ids) > 20
    with_others = pipe.stream_infer(["What is it?"] * 3, gen_config=[other, other, held])
    found: dict[int, list[int]] = {0: [], 1: []}
    for piece in with_others:
        stream.close()
        if piece.index in found:
            found[piece.index] += piece.token_ids
    assert list(found.values()) == [expected] * 2
    wait_until(lambda: pipe.engine.stats().num_running == 0)
    assert pipe.engine.stats().num_used_kv_blocks == 0


def test_other_options_hold_over_forced_tokens(pipe: Pipeline) -> None:
    for options in (
        {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.3},
        {"min_new_tokens": 12},
        {"do_sample": True, "temperature": 1.0, "min_p": 0.01, "random_seed": 4},
    ):
        answer, num_steps, num_jumped = ask(pipe, make_config(SCHEMA, **options))
        assert answer.finish_reason == "stop" and num_jumped and num_steps < len(answer.token_ids), options
        assert list(json.loads(answer.text)) == list(INVOICE["properties"])
    repeated = {"type": "regex_schema", "regex_schema": "(one two ){20}"}
    answer, _, num_jumped = ask(
        pipe, make_config(repeated, repetition_ngram_size=4, repetition_ngram_threshold=3, max_new_tokens=200)
    )
    assert answer.finish_reason == "stop" and num_jumped and answer.text.count("two") < 8


def test_a_jump_on_graphs_saves_several_steps() -> None:
    eager, graphs = (JumpRule(session_len=99, has_graphs=has_graphs) for has_graphs in (False, True))
    found = {1: tuple(range(10)), 2: (5, 6, 7, 8)}
    assert eager.choose(99, found) == graphs.choose(3, found) == found
    assert graphs.choose(4, found) == {}


@pytest.mark.parametrize(
    ("has_graphs", "num_rows", "num_saved", "pays"),
    [
        (False, 1, 1, True), (False, 9, 1, True), (False, 1, 0, False),
        (True, 1, 4, True), (True, 1, 3, False), (True, 8, 32, True), (True, 8, 31, False),
    ],
)  # fmt: skip
def test_a_jump_pays_where_it_saves_as_many_steps_as_it_takes(
    has_graphs: bool, num_rows: int, num_saved: int, pays: bool
) -> None:
    rule = JumpRule(session_len=99, has_graphs=has_graphs)
    assert rule.pays(num_rows, num_saved) == pays
    found = {3: tuple(range(num_saved + 1))}
    assert rule.choose(num_rows, found) == (found if pays else {})


def test_forced_tokens_have_room_in_the_answer_and_in_the_context() -> None:
    rule, row = JumpRule(session_len=20, has_graphs=False), Row(3, 9, 1, True)
    sequence: Any = SimpleNamespace(num_prompt_tokens=8, params=SamplingParams(max_new_tokens=6))
    assert rule.find(row, sequence, (1, 2, 3)) == (1, 2, 3)
    assert rule.find(row, sequence, (1, 2, 3, 4, 5)) == (1, 2, 3, 4), "of six tokens two are there"
    sequence.params = SamplingParams(max_new_tokens=60)
    assert rule.find(row, sequence, tuple(range(40))) == tuple(range(10)), "of 20 tokens ten are there"
    assert rule.find(row, sequence, (1,)) == () == rule.find(row, sequence, ())
    sequence.params = SamplingParams(max_new_tokens=3)
    assert rule.find(row, sequence, (1, 2)) == (), "one token is no jump"

"""Words that must not appear and n-grams that must not come twice: in both process forms, one step ahead, preempted,
streamed, beside pictures and other requests, with tokenizers of bytes and of pieces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import ask, collect, make_message, make_picture, parse

from seesay.config import EngineConfig, GenerationConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import RequestError

NAMES = ("qwen2_5_vl", "llava")
"""A tokenizer of bytes, and one of pieces."""


@pytest.fixture(
    scope="module",
    params=[(NAMES[0], True), pytest.param((NAMES[0], False), marks=pytest.mark.slow), (NAMES[1], False)],
    ids=str,
)
def engine(request: pytest.FixtureRequest, tiny_checkpoint: Callable[[str], Path]) -> Iterator[AsyncEngine]:
    name, own = request.param
    options: dict[str, Any] = {"async_scheduling": True, "max_prefill_token_num": 16, "block_size": 4}
    config = EngineConfig(device_type="cpu", engine_process=own, num_gpu_blocks=200, **options)
    with AsyncEngine(str(tiny_checkpoint(name)), backend_config=config) as engine:
        yield engine


def draw(seed: int, **options: Any) -> GenerationConfig:
    return GenerationConfig(
        do_sample=True, temperature=1.5, top_k=0, random_seed=seed, max_new_tokens=24, ignore_eos=True, **options
    )


def test_bad_words_never_appear(engine: AsyncEngine) -> None:
    """Also those that are cut into tokens in the middle, of answers that were full of them."""
    prompts = ["go", [make_message(make_picture(30, 40, 1), "what?")], "sing"]
    free = [ask(engine, parse(prompts, draw(seed)))[index].text for index, seed in enumerate((1, 2, 3))]
    runs = sorted({run for text in free for run in text.split("\ufffd") if run})
    words = [run[:3] for run in runs if len(run) > 1][:8] + [run[:1] for run in runs[::4]]
    assert len(words) >= 8 and max(map(len, words)) > 1
    requests = parse(prompts, *(draw(seed, bad_words=words) for seed in (1, 2, 3)))
    requests += [replace(request, streams=False) for request in requests]
    neighbours = parse(["go"], draw(1))
    answers = ask(engine, [*requests, *neighbours])
    for answer in answers[:-1]:
        assert answer.error is None and answer.generate_token_len == 24
        assert not [word for word in words if word in answer.text], (words, answer.text)
    assert [answer.text for answer in answers[:3]] == [answer.text for answer in answers[3:6]]
    assert answers[-1].text == free[0], "a neighbour without bad words has its own answer"


def test_a_grammar_and_bad_words_hold_together(engine: AsyncEngine) -> None:
    """What the grammar leaves and the words allow: letters in turn. With nothing left, the request alone ends."""
    form = {"type": "regex_schema", "regex_schema": "[ab]{6}"}
    options: dict[str, Any] = {"do_sample": True, "temperature": 1.5, "top_k": 0, "response_format": form}
    configs = [
        GenerationConfig(random_seed=3, bad_words=words, **options) for words in (["aa", "bb"], None, ["a", "b"])
    ]
    turns, free, stuck = ask(engine, parse(["go"] * 3, *configs))
    assert turns.text in ("ababab", "bababa") and turns.finish_reason == "stop"
    assert set(free.text) <= set("ab") and len(free.text) == 6
    assert isinstance(stuck.error, RequestError) and stuck.error.param == "bad_words"
    assert "bad_words forbid every token that response_format allows behind 0 tokens" in str(stuck.error)


def test_only_allowed_tokens_come(engine: AsyncEngine) -> None:
    """Drawn and greedy, to the end where no EOS is allowed, and beside a grammar what both allow."""
    tokenizer = engine.tokenizer
    ids = [tokenizer.encode(letter, add_special_tokens=False)[-1] for letter in "abcx"]
    options: dict[str, Any] = {"do_sample": True, "temperature": 1.5, "top_k": 0, "random_seed": 3}
    form = {"type": "regex_schema", "regex_schema": "[a-f]{6}"}
    eos = list(engine.find_ending_ids(parse(["go"], GenerationConfig())[0]))
    drawn, greedy, both, stuck, late = ask(
        engine,
        parse(
            ["go"] * 5,
            GenerationConfig(max_new_tokens=30, allowed_token_ids=ids, **options),
            GenerationConfig(max_new_tokens=5, allowed_token_ids=ids[:1]),
            GenerationConfig(allowed_token_ids=[*ids, *eos], response_format=form, **options),
            GenerationConfig(allowed_token_ids=ids[3:], response_format=form),
            GenerationConfig(allowed_token_ids=ids[:1], bad_token_ids=ids[:1]),
        ),
    )
    assert set(drawn.token_ids) == set(ids) and drawn.finish_reason == "length"
    assert greedy.token_ids == ids[:1] * 5
    assert set(both.text) <= set("abc") and len(both.text) == 6 and both.finish_reason == "stop"
    for answer, names in ((stuck, "allowed_token_ids forbid every token that response_format allows"),
                          (late, "allowed_token_ids and bad_token_ids forbid every token")):  # fmt: skip
        assert isinstance(answer.error, RequestError) and answer.error.param == "allowed_token_ids"
        assert f"{names} behind 0 tokens" in str(answer.error)
    [unknown] = ask(engine, parse(["go"], GenerationConfig(allowed_token_ids=[1 << 40])))
    assert isinstance(unknown.error, RequestError) and unknown.error.param == "allowed_token_ids"


def test_what_cannot_be_had_together_is_named_and_costs_no_neighbour(engine: AsyncEngine) -> None:
    """Each with what to change. The neighbours in the same steps have the answers that they have alone."""
    form = {"type": "choice", "choice": ["ab"]}
    size = engine.checkpoint.config["text_config"]["vocab_size"]
    impossible: list[tuple[dict[str, Any], str, str]] = [
        ({"min_new_tokens": 9, "response_format": form}, "min_new_tokens", "ends after [12] tokens.*lower min_new_tok"),
        ({"bad_words": ["b"], "response_format": form}, "bad_words", "^bad_words forbid .* response_format allows"),
        ({"bad_token_ids": list(range(size))}, "bad_token_ids", "^bad_token_ids forbid every token behind 0 tokens"),
        (
            {"bad_token_ids": list(range(size)), "response_format": form, "bad_words": ["q"], "min_new_tokens": 1},
            "bad_token_ids",
            "^bad_token_ids forbid every token behind 0 tokens",
        ),
        ({"no_repeat_ngram_size": 1, "response_format": {"type": "choice", "choice": ["aaaaaaaaaaaaaaaaa"]}},
         "no_repeat_ngram_size", "^no_repeat_ngram_size forbids .* or 0"),
    ]  # fmt: skip
    held = GenerationConfig(response_format={"type": "regex_schema", "regex_schema": "[ab]{6}"})
    neighbours = [draw(5), held]
    alone = [ask(engine, parse(["go"], config))[0].text for config in neighbours]
    configs = [GenerationConfig(**options) for options, _, _ in impossible]
    answers = ask(engine, parse(["go"] * (len(configs) + 2), *configs, *neighbours))
    for answer, (_, param, message) in zip(answers, impossible, strict=False):
        assert isinstance(answer.error, RequestError) and answer.error.param == param, answer
        assert re.search(message, str(answer.error)), str(answer.error)
    assert [answer.text for answer in answers[-2:]] == alone


def test_special_tokens_are_forbidden_where_they_would_show(engine: AsyncEngine) -> None:
    special = sorted(engine.tokenizer.special_ids)[0]
    spelling = engine.tokenizer.token_text(special)
    assert spelling is not None
    options: dict[str, Any] = {"max_new_tokens": 3, "ignore_eos": True, "logit_bias": {special: 100.0}}
    options["skip_special_tokens"] = False
    shown, part, whole = (
        ask(engine, parse(["go"], bad_words=words, **options))[0] for words in (None, [spelling[1:]], [spelling])
    )
    assert spelling in shown.text
    assert spelling not in part.text and spelling not in whole.text
    hidden = ask(engine, parse(["go"], **{**options, "skip_special_tokens": True}, bad_words=[spelling[1:]]))[0]
    assert hidden.token_ids == [special] * 3


def test_nothing_left_to_say_is_an_error_of_the_request(engine: AsyncEngine) -> None:
    size = engine.checkpoint.config["text_config"]["vocab_size"]
    config = GenerationConfig(no_repeat_ngram_size=1, bad_token_ids=list(range(1, size)), ignore_eos=True)
    [answer] = ask(engine, [replace(parse(["go"], config)[0], prompt=(0, 5))])
    assert isinstance(answer.error, RequestError) and "no_repeat_ngram_size" in str(answer.error)


def test_an_answer_ends_when_an_ngram_came_too_often(engine: AsyncEngine) -> None:
    options: dict[str, Any] = {"max_new_tokens": 20, "ignore_eos": True, "logit_bias": {7: 100.0}}
    for size, threshold, expected in ((2, 3, 4), (1, 5, 5), (3, 1, 3), (0, 3, 20), (3, 0, 20)):
        given = {"repetition_ngram_size": size, "repetition_ngram_threshold": threshold}
        for streams in (True, False):
            [request] = parse(["go"], **options, **given)
            [deltas] = collect(engine, [replace(request, streams=streams)])
            assert sum(len(delta.token_ids) for delta in deltas) == expected
            assert deltas[-1].finish_reason == ("stop" if expected < 20 else "length")
            assert deltas[-1].stop_reason == ("repetition" if expected < 20 else None)
    given = {"repetition_ngram_size": 1, "repetition_ngram_threshold": 2}
    [late] = ask(engine, parse(["go"], **options, **given, min_new_tokens=9))
    assert late.generate_token_len == 10, "like every other end, not before min_new_tokens"


def test_a_window_and_a_list_of_tokens_let_ngrams_come_again(engine: AsyncEngine) -> None:
    """A token that is far more likely than all others comes as often as it may."""
    size, loud = 24, 7
    options: dict[str, Any] = {"max_new_tokens": size, "ignore_eos": True, "logit_bias": {loud: 100.0}}

    def count(**given: Any) -> int:
        [answer] = ask(engine, parse(["go"], **options, **given))
        assert answer.error is None
        return list(answer.token_ids).count(loud)

    assert count(no_repeat_ngram_size=2) <= size / 2 + 1
    assert count(no_repeat_ngram_size=2, whitelist_token_ids=[loud]) == size
    assert count(no_repeat_ngram_size=2) < count(no_repeat_ngram_size=2, ngram_window=4) < size
    with pytest.raises(AssertionError):
        count(whitelist_token_ids=[1 << 40])


@pytest.mark.parametrize(
    "options",
    [
        {"no_repeat_ngram_size": 1},
        {"no_repeat_ngram_size": 2},
        {"no_repeat_ngram_size": 3, "repetition_penalty": 1.3},
        {"repetition_penalty": 0.7, "min_new_tokens": 12},
    ],
    ids=str,
)
def test_greedy_answers_equal_those_of_transformers(
    engine: AsyncEngine, options: dict[str, Any], tiny_checkpoint: Callable[[str], Path]
) -> None:
    """The prompt counts, as it does there."""
    from transformers import AutoModelForImageTextToText

    path = Path(engine.checkpoint.path)
    model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32).eval()
    for text in ("the game is in the game is in the", "frame"):
        ids = engine.tokenizer.encode(text, add_special_tokens=True)
        with torch.inference_mode():
            output = model.generate(torch.tensor([ids]), max_new_tokens=20, do_sample=False, **options)
        expected = output[0, len(ids) :].tolist()
        [request] = parse(["x"], max_new_tokens=20, include_stop_str_in_output=True, **options)
        [answer] = ask(engine, [replace(request, prompt=tuple(ids))])
        assert answer.error is None
        end = [i for i in engine._preparer.answers.eos_token_ids if i in expected]
        assert list(answer.token_ids) == (expected[: expected.index(end[0])] if end else expected)

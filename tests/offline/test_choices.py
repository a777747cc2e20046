"""`n` and `best_of` in the pipeline: several answers to each prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from seesay import GenerationConfig, Pipeline, pipeline
from seesay.config import EngineConfig
from seesay.engine.front.choices import find_best
from seesay.engine.front.response import Response
from seesay.errors import ConfigError, RequestError

DRAWN = GenerationConfig(max_new_tokens=6, do_sample=True, temperature=1.5, random_seed=3)
PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 52, 3), dtype=np.uint8))
PROMPTS: list[Any] = ["the game in the frame", ("what is it?", PICTURE)]


@pytest.fixture(scope="module")
def pipe(tiny_checkpoint: Callable[[str], Path]) -> Iterator[Pipeline]:
    config = EngineConfig(device_type="cpu", block_size=16)
    with pipeline(str(tiny_checkpoint("qwen2_5_vl")), backend_config=config) as pipe:
        yield pipe


@pytest.fixture(scope="module")
def alone(pipe: Pipeline) -> list[list[Response]]:
    """By prompt, the answers with seeds 3, 4, …, each asked for alone."""
    configs = [replace(DRAWN, random_seed=3 + i, logprobs=0) for i in range(5)]
    return [[pipe(prompt, gen_config=config) for config in configs] for prompt in PROMPTS]


def ids_of(answers: list[Response]) -> list[list[int]]:
    return [answer.token_ids for answer in answers]


def test_the_answers_are_those_of_the_seeds_that_follow(pipe: Pipeline, alone: list[list[Response]]) -> None:
    assert all(len(set(map(tuple, ids_of(answers)))) == 5 for answers in alone)
    found = pipe(PROMPTS, gen_config=replace(DRAWN, n=3))
    for index, (answer, expected) in enumerate(zip(found, alone, strict=True)):
        assert answer.index == index and answer.logprobs is None
        assert ids_of(answer.choices) == ids_of(expected[:3])
        assert [choice.choice_index for choice in answer.choices] == [0, 1, 2]
        assert all(choice.index == index and not choice.other_choices for choice in answer.other_choices)
        assert [choice.usage.completion_tokens for choice in answer.choices if choice.usage] == [6] * 3
    assert repr(found[0]).endswith("choices=3)")


def test_each_prompt_may_have_a_number_of_its_own(pipe: Pipeline, alone: list[list[Response]]) -> None:
    found = asyncio.run(pipe.async_batch_infer(PROMPTS, gen_config=[replace(DRAWN, n=2), DRAWN]))
    assert [ids_of(answer.choices) for answer in found] == [ids_of(alone[0][:2]), ids_of(alone[1][:1])]


@pytest.mark.parametrize("logprobs", [None, 1])
def test_the_best_come_first(pipe: Pipeline, alone: list[list[Response]], logprobs: int | None) -> None:
    found = pipe(PROMPTS, gen_config=replace(DRAWN, n=2, best_of=5, logprobs=logprobs))
    for answer, expected in zip(found, alone, strict=True):
        means = []
        for one in expected:
            assert one.logprobs is not None and one.finish_reason == "length"
            means.append(float(np.mean([entry[i] for i, entry in zip(one.token_ids, one.logprobs, strict=True)])))
            assert one.mean_logprob == pytest.approx(means[-1])
        order = sorted(range(5), key=lambda index: -means[index])
        assert ids_of(answer.choices) == [expected[index].token_ids for index in order[:2]]
        assert [choice.choice_index for choice in answer.choices] == [0, 1]
        assert (answer.logprobs is None) == (logprobs is None)


def test_the_token_that_ends_an_answer_counts(pipe: Pipeline) -> None:
    """An answer that ends at once is as good as that is likely, not better than all."""
    greedy = pipe(PROMPTS[0], gen_config=GenerationConfig(max_new_tokens=1, logprobs=0))
    [first] = greedy.token_ids
    assert greedy.logprobs is not None
    ended = pipe(PROMPTS[0], gen_config=GenerationConfig(max_new_tokens=4, logprobs=0, stop_token_ids=[first]))
    assert (ended.token_ids, ended.finish_reason) == ([], "stop")
    assert ended.mean_logprob == pytest.approx(greedy.logprobs[0][first])


def test_answers_without_a_score_are_the_last() -> None:
    assert find_best([-2.0, None, -1.0, -1.0], 4) == [2, 3, 0, 1]
    assert find_best([-2.0, None, -1.0, -1.0], 1) == [2]


def test_pieces_say_which_answer_they_belong_to(pipe: Pipeline, alone: list[list[Response]]) -> None:
    found: dict[tuple[int, int], list[int]] = {}
    ended = []
    for piece in pipe.stream_infer(PROMPTS, gen_config=replace(DRAWN, n=2)):
        place = piece.index, piece.choice_index
        found.setdefault(place, []).extend(piece.token_ids)
        ended += [place] * (piece.finish_reason is not None)
    assert sorted(ended) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(found[index, choice] == alone[index][choice].token_ids for index, choice in ended)
    whole = {
        answer.index: answer
        for answer in pipe.stream_infer(PROMPTS, gen_config=replace(DRAWN, n=2), stream_response=False)
    }
    assert [ids_of(whole[index].choices) for index in range(2)] == [ids_of(answers[:2]) for answers in alone]


def test_what_cannot_have_several_answers_says_so(pipe: Pipeline) -> None:
    several, best = replace(DRAWN, n=2), replace(DRAWN, best_of=2)
    with pytest.raises(ConfigError, match="best_of=2 cannot be streamed"):
        pipe.stream_infer("a", gen_config=best)
    for config, name in ((several, "n"), (best, "best_of")):
        with pytest.raises(RequestError, match=f"{name}=2 is not supported here"):
            pipe.chat("a", gen_config=config)
    with pytest.raises(ConfigError, match=r"best_of must be in \[n, 1024\], with n=3, got 2"):
        replace(DRAWN, n=3, best_of=2)
    with pytest.raises(ConfigError, match="n must be in"):
        replace(DRAWN, n=0)


def test_a_prompt_that_cannot_be_answered_has_an_error_in_each(pipe: Pipeline) -> None:
    answer = pipe("a " * 5000, gen_config=replace(DRAWN, n=2, best_of=3))
    assert [choice.finish_reason for choice in answer.choices] == ["error"] * 2

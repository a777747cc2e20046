"""Several answers to one prompt: the requests for them, and which are the best."""

from __future__ import annotations

from typing import Any

import pytest

from seesay.config import GenerationConfig
from seesay.engine.front.choices import check_single, choices_of, count_choices, find_best
from seesay.errors import RequestError
from seesay.values import GenerationRequest


def configs_of(num_choices: int | None = None, **options: Any) -> list[GenerationConfig]:
    request = GenerationRequest(prompt="hi", gen_config=GenerationConfig(**options), priority=3)
    choices = choices_of(request, num_choices)
    assert all((choice.prompt, choice.priority) == ("hi", 3) for choice in choices)
    return [choice.gen_config for choice in choices]


def test_one_answer_is_the_request_itself() -> None:
    request = GenerationRequest(prompt="hi", gen_config=GenerationConfig(random_seed=4, prompt_logprobs=2))
    assert choices_of(request) == [request]


def test_seeds_follow_one_another_to_the_last_and_the_first() -> None:
    assert [config.random_seed for config in configs_of(n=3, random_seed=7)] == [7, 8, 9]
    last = (1 << 64) - 1
    assert [config.random_seed for config in configs_of(n=3, random_seed=last)] == [last, 0, 1]
    assert [config.random_seed for config in configs_of(n=2, random_seed=-1)] == [last, 0], "as of one answer: 64 bits"
    assert [config.random_seed for config in configs_of(n=2)] == [None, None]


@pytest.mark.parametrize(
    ("options", "num_choices", "logprobs"),
    [
        ({"n": 2}, None, [None] * 2),
        ({"n": 2, "best_of": 3}, None, [0] * 3),  # the best are to be found
        ({"n": 2, "best_of": 2}, None, [None] * 2),
        ({"n": 2, "best_of": 3, "logprobs": 4}, None, [4] * 3),
        ({}, 3, [None] * 3),
    ],
)
def test_answers_among_which_the_best_are_to_be_found_have_log_probabilities(
    options: dict[str, Any], num_choices: int | None, logprobs: list[int | None]
) -> None:
    configs = configs_of(num_choices, do_sample=True, **options)
    assert [config.logprobs for config in configs] == logprobs
    assert all((config.n, config.best_of) == (1, None) for config in configs)


def test_the_first_answer_alone_has_those_of_the_prompt() -> None:
    assert [config.prompt_logprobs for config in configs_of(n=3, prompt_logprobs=5)] == [5, None, None]


def test_the_best_come_first_and_those_without_a_score_last() -> None:
    assert find_best([-3.0, None, -1.0, -2.0, -1.0], 4) == [2, 4, 3, 0]
    assert find_best([None, -9.0], 1) == [1]


def test_what_gives_one_answer_refuses_several() -> None:
    check_single(GenerationConfig(n=1, best_of=1))
    for config in (GenerationConfig(n=2), GenerationConfig(do_sample=True, best_of=3)):
        assert count_choices(config) > 1
        with pytest.raises(RequestError, match="sessions and `generate` give one answer"):
            check_single(config)

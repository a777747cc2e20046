"""The mask of tokens that are not padding: of steps that are filled up, and of graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from llm import backbones
from llm.eager_graphs import record_eagerly

from seesay.llm.models.decoder import ModelInput
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.running.runner import ModelRunner

LENGTHS = 41, 9, 1
NUM_NEW = 5


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return backbones.make_backbone("qwen2", tmp_path_factory.mktemp("qwen2"))


def watch(runner: ModelRunner, seen: list[ModelInput]) -> None:
    """Keep the inputs of the decoder, and put other tokens where it is told that there is padding."""
    forward = runner.decoder.forward

    def compute(inputs: ModelInput, *args: Any) -> torch.Tensor:
        if inputs.is_valid is not None:
            inputs.input_ids.masked_fill_(~inputs.is_valid, 7)
        seen.append(inputs)
        return forward(inputs, *args)

    runner.decoder.forward = compute  # type: ignore[assignment, method-assign, unused-ignore]


def answer(backbone: Any, runner: ModelRunner) -> list[list[int]]:
    prompts = [backbones.make_prompt(backbone, length, seed=length) for length in LENGTHS]
    params = [SamplingParams(max_new_tokens=NUM_NEW)] * len(prompts)
    return backbones.Driver(runner).generate(prompts, params)[0]


def count_valid(inputs: ModelInput) -> int:
    assert inputs.is_valid is not None
    assert inputs.is_valid.dtype is torch.bool and inputs.is_valid.shape == inputs.input_ids.shape
    count = int(inputs.is_valid.sum())
    assert inputs.is_valid[:count].all(), "padding comes last"
    return count


def test_steps_that_are_filled_up_say_which_tokens_are_padding(backbone: Any) -> None:
    expected = answer(backbone, backbones.load_runner(backbone))
    runner, seen = backbones.load_runner(backbone), list[ModelInput]()
    runner.warm_up()
    watch(runner, seen)
    assert answer(backbone, runner) == expected
    assert [count_valid(inputs) for inputs in seen] == [sum(LENGTHS)] + [len(LENGTHS)] * (NUM_NEW - 1)
    assert [len(inputs.input_ids) for inputs in seen] == [56] + [4] * (NUM_NEW - 1)


def test_graphs_say_which_rows_are_padding(backbone: Any) -> None:
    expected = answer(backbone, backbones.load_runner(backbone))
    runner, seen = backbones.load_runner(backbone), list[ModelInput]()
    sizes = record_eagerly(runner)
    watch(runner, seen)
    assert answer(backbone, runner) == expected
    assert sizes == [len(LENGTHS)] * (NUM_NEW - 1)
    assert seen[0].is_valid is None, "nothing is filled up without a warm-up"
    assert [count_valid(inputs) for inputs in seen[1:]] == sizes
    assert {len(inputs.input_ids) for inputs in seen[1:]} == {4}


def test_a_step_that_is_tried_at_start_has_no_padding(backbone: Any) -> None:
    runner, seen = backbones.load_runner(backbone), list[ModelInput]()
    warm_up = runner.decoder.warm_up

    def keep(inputs: ModelInput, *args: Any) -> None:
        seen.append(inputs)
        warm_up(inputs, *args)

    runner.decoder.warm_up = keep  # type: ignore[assignment, method-assign, unused-ignore]
    runner.warm_up()
    assert seen and all(count_valid(inputs) == len(inputs.input_ids) for inputs in seen)

"""What is measured of steps at start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from llm import backbones

from seesay.device.streams import Stopwatch, on_stream
from seesay.llm.models.decoder import ModelInput
from seesay.llm.plans.step_times import StepCosts, StepTimes, StepWork, count_pairs
from seesay.llm.running.blank_input import make_blank_input
from seesay.llm.running.runner import ModelRunner
from seesay.llm.running.step_sizes import token_sizes
from seesay.llm.running.step_timing import LEAST_S, _find_slope, measure_step_costs

SESSION_LEN = 128


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> backbones.Backbone:
    return backbones.make_backbone("qwen2", tmp_path_factory.mktemp("qwen2"))


def measure(runner: ModelRunner, max_tokens: int, *, max_rows: int = 64, **options: Any) -> StepCosts:
    assert runner._cache is not None
    with torch.inference_mode():
        return measure_step_costs(
            runner.decoder,
            runner._cache,
            sizes=token_sizes(max_tokens),
            max_rows=max_rows,
            num_blocks=runner.num_blocks,
            session_len=SESSION_LEN,
            stream=runner.stream,
            **options,
        )


@pytest.mark.parametrize("max_tokens", [2, 5, 200, 1500])
def test_costs_of_all_sizes_are_measured(backbone: backbones.Backbone, max_tokens: int) -> None:
    costs = measure(backbones.load_runner(backbone), max_tokens)
    assert list(costs.sizes) == token_sizes(max_tokens) and costs.is_padded
    assert list(costs.seconds) == sorted(costs.seconds) and costs.context_s >= LEAST_S <= costs.pair_s
    times = StepTimes(costs)
    works = [StepWork(1, 50, count, count_pairs(0, count)) for count in (1, max_tokens, 2 * max_tokens)]
    durations = [times.predict(work) for work in works]
    assert 0 < durations[0] <= durations[1] < durations[2] < float("inf")


def test_no_step_has_more_rows_than_there_is_memory_for(
    backbone: backbones.Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention of torch takes memory for the context of each row, and the largest step that was tried has so many."""
    runner, rows = backbones.load_runner(backbone), list[int]()
    forward = runner.decoder.forward

    def watch(inputs: ModelInput, *args: Any) -> Any:
        rows.append(len(inputs.layout.kv_lens))
        return forward(inputs, *args)

    monkeypatch.setattr(runner.decoder, "forward", watch)
    measure(runner, 200, max_rows=3)
    assert max(rows) == 3


def test_kernels_that_are_loaded_meanwhile_do_not_count_as_contexts() -> None:
    trials = [[lambda: 0.5, lambda: 2.0], [lambda: 0.010, lambda: 0.014]]
    assert _find_slope(trials, 1000, most=1.0) == pytest.approx(4e-6)
    assert _find_slope(trials, 1000, most=1e-6) == 1e-6
    assert _find_slope([[lambda: 0.2, lambda: 0.1]], 1000, most=1.0) == LEAST_S


def test_kernels_that_are_loaded_meanwhile_do_not_count_as_tokens(
    backbone: backbones.Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with libraries on a GPU: the first forward pass of a size takes as long as a large one."""
    runner = backbones.load_runner(backbone)
    forward, loaded, now_s = runner.decoder.forward, set[int](), 0.0

    class Watch(Stopwatch):
        """One whose seconds are the tokens that were computed, or 200 where kernels were loaded."""

        def __init__(self, stream: torch.cuda.Stream | None) -> None:
            self._stream, self._started_s = None, now_s

        def stop(self) -> None:
            self._stopped_s = now_s

    def load_and_forward(inputs: ModelInput, *others: Any) -> torch.Tensor:
        nonlocal now_s
        num_tokens = len(inputs.input_ids)
        now_s += num_tokens if num_tokens in loaded else 200
        loaded.add(num_tokens)
        return forward(inputs, *others)

    monkeypatch.setattr(runner.decoder, "forward", load_and_forward)
    times = StepTimes(measure(runner, 200, begin_timing=Watch))
    assert {1, 16, 64, 128, 200} <= loaded
    short_s, long_s = (times.predict(StepWork(0, 0, count, count_pairs(0, count))) for count in (16, 200))
    assert short_s < 30 < 150 < long_s


def test_the_blocks_of_sequences_are_left_alone(backbone: backbones.Backbone) -> None:
    runner = backbones.load_runner(backbone)
    assert runner._cache is not None
    before = [layer.data[: runner.num_blocks].clone() for layer in runner._cache.layers]
    measure(runner, 300)
    for layer, old in zip(runner._cache.layers, before, strict=True):
        assert torch.equal(layer.data[: runner.num_blocks], old)
        assert layer.data[runner.num_blocks].any()


def test_on_the_cpu_nothing_is_measured(backbone: backbones.Backbone) -> None:
    runner = backbones.load_runner(backbone)
    assert runner.measure_step_costs() == StepCosts.guess(runner.decoder.traits.flops_per_token)


@pytest.mark.gpu
def test_on_a_gpu_predictions_are_near_what_steps_take(backbone: backbones.Backbone) -> None:
    runner = backbones.load_runner(backbone, device="cuda", session_len=4096)
    runner.limits = replace(runner.limits, max_step_tokens=4096, max_batch_size=64)
    runner.warm_up()
    times = StepTimes(runner.measure_step_costs())
    assert runner._cache is not None
    found, predicted = [], []
    for size in (64, 512, 1024, 2048, 4096):
        inputs = make_blank_input(
            [size],
            [size],
            scratch_block=runner.num_blocks,
            block_size=runner.block_size,
            device=runner.device,
            num_blocks=runner.num_blocks,
        )
        wanted = torch.arange(1, device=runner.device)
        with torch.inference_mode(), on_stream(runner.stream):
            stopwatch = Stopwatch(runner.stream)
            runner.decoder.logits(runner.decoder.forward(inputs, runner._cache.layers, wanted))
            stopwatch.stop()
        found.append(stopwatch.seconds())
        predicted.append(times.predict(StepWork(0, 0, size, count_pairs(0, size))))
    assert sum(predicted) == pytest.approx(sum(found), rel=1.0)
    assert predicted == sorted(predicted)

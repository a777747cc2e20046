"""Steps sized by time, through the whole engine: the same answers, and as short as was asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import ask, ask_in_order, held, loop_of, make_conversations, make_message, parse

from seesay.config import EngineConfig, GenerationConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.front.starting import CoreParts
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.plans.step_times import StepWork, count_pairs, measure_work
from seesay.llm.running.launched_step import LaunchedStep, StepResult
from seesay.llm.running.runner import ModelRunner
from seesay.llm.scheduling.step_policy import LEAST_TOKENS, FixedChunks, TimedSteps
from seesay.values import GenerationRequest, OutputDelta

NEW_TOKENS = 24
SAMPLING: tuple[Mapping[str, Any], ...] = (
    {},
    {"do_sample": True, "temperature": 2.0, "top_p": 0.95, "random_seed": 5},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
)


def make_requests(name: str) -> list[GenerationRequest]:
    """Short ones first, whose answers are streamed when the long prompts are computed."""
    conversations = [*make_conversations(name), [make_message("the frame in the game, " * 60)]]
    conversations.append([make_message("a game in the frame, " * 90)])
    return [
        request
        for index, conversation in enumerate(conversations)
        for request in parse([conversation], max_new_tokens=NEW_TOKENS, **SAMPLING[index % len(SAMPLING)])
    ]


def build(path: Path, make_runner: type[ModelRunner] | None = None, **options: Any) -> AsyncEngine:
    config = EngineConfig(device_type="cpu", block_size=16, **options)
    return AsyncEngine(str(path), backend_config=config, core_parts=CoreParts(make_runner=make_runner))


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2_5_vl"])
def test_answers_do_not_depend_on_it(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    requests, answers = make_requests(name), []
    for max_step_ms in (None, 1, 40):
        for is_ahead in (False, True):
            with build(tiny_checkpoint(name), max_step_ms=max_step_ms, async_scheduling=is_ahead) as engine:
                outputs = ask(engine, requests)
                assert all(output.error is None for output in outputs), outputs
                answers.append([list(output.token_ids) for output in outputs])
    assert all(answer == answers[0] for answer in answers)


def test_the_option_chooses_the_policy(tiny_checkpoint: Callable[[str], Path]) -> None:
    path = tiny_checkpoint("llama")
    with build(path, max_step_ms=25) as engine:
        policy = loop_of(engine)._scheduler._policy
        assert isinstance(policy, TimedSteps) and policy.max_step_s == 0.025
    with build(path) as engine:
        assert isinstance(loop_of(engine)._scheduler._policy, FixedChunks)


def test_steps_beside_streamed_answers_are_as_small_as_a_slow_machine_needs(
    tiny_checkpoint: Callable[[str], Path],
) -> None:
    """On a machine that is far too slow for the limit, each has a minimal chunk."""
    sizes: list[int] = []
    seconds: list[float | None] = []

    class SlowRunner(ModelRunner):
        def launch(self, plan: StepPlan, splices: Any) -> LaunchedStep:
            if plan.is_streamed:
                sizes.append(measure_work(plan.rows).num_prompt_tokens)
            return super().launch(plan, splices)

        def collect(self, launched: LaunchedStep) -> StepResult:
            result = super().collect(launched)
            seconds.append(result.seconds)
            return replace(result, seconds=60.0)

    short = parse([[make_message("Frame")]], max_new_tokens=60, min_new_tokens=60)
    long = parse([[make_message("the frame in the game, " * 60)] for _ in range(3)], max_new_tokens=4)
    long += parse([[make_message("a game in the frame, " * 60)]], max_new_tokens=4)
    largest = {}
    for max_step_ms in (None, 1):
        sizes.clear()
        options: dict[str, Any] = {"max_prefill_token_num": 200, "enable_prefix_caching": False}
        with build(tiny_checkpoint("llama"), SlowRunner, max_step_ms=max_step_ms, **options) as engine:
            assert all(output.error is None for output in ask(engine, short + long))
        largest[max_step_ms] = max(sizes)
    assert largest[1] <= LEAST_TOKENS < largest[None]
    assert all(each is not None and each > 0 for each in seconds)


def test_steps_that_were_timed_correct_the_predictions(tiny_checkpoint: Callable[[str], Path]) -> None:
    """The long prompt is computed beside the answer to the short one, which therefore comes first."""
    options: dict[str, Any] = {"max_prefill_token_num": 200, "enable_prefix_caching": False}
    with build(tiny_checkpoint("llama"), max_step_ms=1, **options) as engine:
        policy = loop_of(engine)._scheduler._policy
        assert isinstance(policy, TimedSteps)
        work = StepWork(1, 100, 64, count_pairs(0, 64))
        before = policy.times.predict(work)
        requests = parse([[make_message("Frame")]], max_new_tokens=60, min_new_tokens=60)
        requests += parse([[make_message("the frame in the game, " * 60)]], max_new_tokens=4)
        assert all(output.error is None for output in ask_in_order(engine, requests))
        assert policy.times.predict(work) != before


def count_tokens_beside(engine: AsyncEngine, streamed: GenerationRequest, long: GenerationRequest) -> int:
    """Tokens of a streamed answer that come between the admission of a long prompt and its first token. Everything that
    counts runs in the loop's thread."""
    deltas: list[OutputDelta] = []
    counts: list[int] = []
    has_begun, is_over = threading.Event(), threading.Event()

    def count() -> None:
        counts.append(sum(len(delta.token_ids) for delta in deltas))

    def take_streamed(delta: OutputDelta) -> None:
        deltas.append(delta)
        has_begun.set()

    def take_long(delta: OutputDelta) -> None:
        assert delta.error is None, delta.error
        count()
        is_over.set()

    [streamed_id] = engine.submit_batch([streamed], take_streamed)
    assert has_begun.wait(60)
    with held(engine):
        loop_of(engine)._inbox.put(count)
        engine.submit_batch([long], take_long)
    assert is_over.wait(200)
    engine.abort(streamed_id)
    assert all(delta.error is None and delta.finish_reason in (None, "abort") for delta in deltas)
    return counts[1] - counts[0]


def test_a_long_prompt_does_not_stall_a_stream_on_the_cpu(tiny_checkpoint: Callable[[str], Path]) -> None:
    """Not with steps of a fixed size, and not with timed ones, whose durations are not measured at start there: they
    begin with a guess, and are learned."""
    long_prompt = tuple(np.random.default_rng(3).integers(5, 200, 8000).tolist())
    streamed, long = (
        GenerationRequest(prompt=prompt, gen_config=GenerationConfig(max_new_tokens=num, ignore_eos=True), streams=True)
        for prompt, num in (((5, 6, 7), 8000), (long_prompt, 1))
    )
    options: dict[str, Any] = {"session_len": 8192, "hf_overrides": {"max_position_embeddings": 8192}}
    num_tokens = {}
    for max_step_ms in (None, 5):
        with build(tiny_checkpoint("llama"), max_step_ms=max_step_ms, **options) as engine:
            num_tokens[max_step_ms] = count_tokens_beside(engine, streamed, long)
    assert num_tokens[None] >= 10 and num_tokens[5] >= 10, num_tokens

"""The whole stream on a CUDA GPU, against Transformers on the same GPU. Skipped where there is none.

In float32 the greedy tokens are equal. In bfloat16 logits are compared with Transformers' float32 ones: our relative
error ‖ours - reference‖ / ‖reference‖ is below `BF16_TOLERANCE`, and at most `BF16_RATIO` times the error that
Transformers itself makes in bfloat16.
"""

from __future__ import annotations

import queue
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import ask, ask_in_order, loop_of, make_conversations, make_picture, parse, run_transformers
from enrolment import BACKBONES, COMPOSED
from llm.device_state import read_state

from seesay.config import EngineConfig, GenerationConfig, VisionConfig
from seesay.engine.core.loading import loading
from seesay.engine.core.loading.runner_loading import load_runner
from seesay.engine.front.engine import AsyncEngine
from seesay.llm.running.decode_graphs import DecodeGraphs, DecodeOutput
from seesay.llm.running.launched_step import LaunchedStep
from seesay.llm.running.runner import ModelRunner
from seesay.llm.running.step_input import StepRows
from seesay.values import GenerationRequest, OutputDelta

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

NEW_TOKENS = 32
SAMPLING: tuple[Mapping[str, Any], ...] = (
    {},
    {"do_sample": True, "temperature": 1.5, "top_p": 0.9, "random_seed": 3},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"do_sample": True, "temperature": 2.0, "top_k": 20, "random_seed": -7},
    {"do_sample": True, "random_seed": 5, "presence_penalty": 0.5, "bad_token_ids": [5, 9]},
)
BF16_TOLERANCE = 0.06
BF16_RATIO = 1.5

IN_A_THREAD: dict[str, Any] = {"device_type": "cuda", "engine_process": False}
"""An engine starts in a second, and its insides can be looked at. In a process, the default, it takes ten."""


def make_requests(name: str, **options: Any) -> list[GenerationRequest]:
    return parse(make_conversations(name), max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, **options)


@pytest.mark.parametrize("name", (*BACKBONES, *COMPOSED))
def test_float32_answers_equal_transformers(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    path = tiny_checkpoint(name)
    expected = [e.answer for e in run_transformers(path, name, new_tokens=NEW_TOKENS, device="cuda")]
    others: list[dict[str, Any]] = [{"engine_process": True}] if name == "qwen2_5_vl" else []
    for options in ({}, {"max_prefill_token_num": 7}, *others):
        config = EngineConfig(**{**IN_A_THREAD, **options}, dtype="float32", block_size=16, num_gpu_blocks=200)
        with AsyncEngine(str(path), backend_config=config) as engine:
            for _ in range(2):  # the second time from the cache
                outputs = ask(engine, make_requests(name))
                assert [list(output.token_ids) for output in outputs] == expected, options


@pytest.mark.parametrize("name", ("llama", "qwen2_5_vl"))
def test_kept_on_the_host(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    """A cache that holds hardly one of the prompts, and room for all of them on the host."""
    path = tiny_checkpoint(name)
    expected = run_transformers(path, name, new_tokens=NEW_TOKENS, device="cuda")
    num_blocks = max(len(e.input_ids) + NEW_TOKENS for e in expected) // 16 + 2
    config = EngineConfig(**IN_A_THREAD, dtype="float32", block_size=16, num_gpu_blocks=num_blocks, num_cpu_blocks=100)
    with AsyncEngine(str(path), backend_config=config) as engine:
        for is_known in (False, True):
            outputs = ask(engine, make_requests(name))
            assert [list(output.token_ids) for output in outputs] == [e.answer for e in expected]
            for output in outputs:
                assert output.usage is not None
                assert not is_known or output.usage.cached_tokens == (output.usage.prompt_tokens - 1) // 16 * 16
        assert engine.stats().total_host_kv_loads > 0


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("name", ("llama", "phi3_longrope", "qwen2_5_vl"))
def test_graphs_change_no_token(
    name: str, is_ahead: bool, tiny_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of many lengths join, end and are preempted. After each step the device has what the host says."""
    load, runners, sizes = load_runner, list[ModelRunner](), list[int]()

    def watch_runner(*args: Any, **options: Any) -> ModelRunner:
        runner = load(*args, **options)
        sample = runner.sample

        def check_sample(launched: LaunchedStep, *others: Any, **options: Any) -> None:
            sample(launched, *others, **options)
            torch.cuda.synchronize()
            sizes.append(len(read_state(runner)))

        monkeypatch.setattr(runner, "sample", check_sample)
        runners.append(runner)
        return runner

    monkeypatch.setattr(loading, "load_runner", watch_runner)
    run, num_graph_steps = DecodeGraphs.run, [0]

    def count_run(self: DecodeGraphs, step: StepRows) -> DecodeOutput:
        num_graph_steps[-1] += 1
        return run(self, step)

    monkeypatch.setattr(DecodeGraphs, "run", count_run)
    conversations = parse(make_conversations(name))
    requests = []
    for index in range(24):
        request, options = conversations[index % len(conversations)], SAMPLING[index % len(SAMPLING)]
        config = GenerationConfig(max_new_tokens=5 + 3 * index, ignore_eos=True, **options)
        requests.append(replace(request, gen_config=config))
    answers = []
    for eager_mode in (False, True):
        backend_config = EngineConfig(
            **IN_A_THREAD,
            dtype="float32",
            block_size=16,
            num_gpu_blocks=40,
            max_batch_size=12,
            enable_prefix_caching=False,
            async_scheduling=is_ahead,
            eager_mode=eager_mode,
        )
        with AsyncEngine(str(tiny_checkpoint(name)), backend_config=backend_config) as engine:
            outputs = ask_in_order(engine, requests)
            assert engine.stats().total_preemptions > 0
        answers.append([list(output.token_ids) for output in outputs])
        num_graph_steps.append(0)
    assert [len(answer) for answer in answers[0]] == [5 + 3 * index for index in range(24)]
    assert answers[0] == answers[1]
    assert num_graph_steps[0] > 50 and not any(num_graph_steps[1:]) and max(sizes) > 4


@pytest.mark.parametrize("name", (*BACKBONES, *COMPOSED))
def test_bfloat16_logits_are_as_good_as_transformers(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    path = tiny_checkpoint(name)
    reference = run_transformers(path, name, new_tokens=1, device="cuda")
    theirs = run_transformers(path, name, new_tokens=1, device="cuda", dtype=torch.bfloat16)
    config = EngineConfig(**IN_A_THREAD, dtype="bfloat16", block_size=16, num_gpu_blocks=200)
    with AsyncEngine(str(path), backend_config=config) as engine:
        outputs = ask(engine, make_requests(name, output_logits="all"))
    for index, output in enumerate(outputs):
        expected = reference[index].logits
        ours = output.logits[: len(expected)]
        error, their_error = (float((x - expected).norm() / expected.norm()) for x in (ours, theirs[index].logits))
        assert error < BF16_TOLERANCE and error < BF16_RATIO * their_error + 1e-3, (name, index, error, their_error)


@pytest.mark.timeout(7200)
def test_who_asks_for_a_picture_that_another_gave_up_gets_an_answer(
    tiny_checkpoint: Callable[[str], Path], pytestconfig: pytest.Config
) -> None:
    """For `--stress-s` seconds: requests are aborted while their picture is encoded, nothing is kept of it, and others
    ask for the same picture. All who wait get the answer of the picture alone."""
    config = EngineConfig(**IN_A_THREAD, dtype="float32", num_gpu_blocks=400, enable_prefix_caching=False)
    pictures = [make_picture(28 * (2 + n), 56, n) for n in range(3)]
    requests = parse([("what is it?", picture) for picture in pictures], max_new_tokens=4, ignore_eos=True)
    rng, counts = random.Random(0), Counter[str]()
    path = str(tiny_checkpoint("qwen2_5_vl"))
    with AsyncEngine(str(path), backend_config=config, vision_config=VisionConfig(embedding_cache_bytes=0)) as engine:
        expected = [ask(engine, [request])[0].token_ids for request in requests]
        deadline = time.monotonic() + pytestconfig.getoption("stress_s")  # kernels may have been compiled until now
        arrived: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
        waiting: dict[int, tuple[int, list[int]]] = {}
        while time.monotonic() < deadline or waiting:
            while len(waiting) < 6 and time.monotonic() < deadline:
                number = rng.randrange(len(requests))
                request_id = engine.submit_batch([requests[number]], arrived.put)[0]
                waiting[request_id] = number, []
                if rng.random() < 0.7:
                    time.sleep(rng.random() * 0.004)
                    engine.abort(request_id)
            delta = arrived.get(timeout=60)
            number, token_ids = waiting[delta.request_id]
            token_ids += delta.token_ids
            if delta.finish_reason is not None:
                assert delta.error is None, delta.error
                counts[delta.finish_reason] += 1
                assert token_ids == list(expected[number])[: len(token_ids)]
                assert delta.finish_reason == "abort" or len(token_ids) == 4
                del waiting[delta.request_id]
    print(dict(counts))
    assert counts["abort"] and counts["length"]


def test_cache_is_sized_by_what_is_free(tiny_checkpoint: Callable[[str], Path]) -> None:
    """The share of the free memory that `cache_max_entry_count` says, after the largest prefill and encode."""
    free, _ = torch.cuda.mem_get_info()
    config = EngineConfig(**IN_A_THREAD, cache_max_entry_count=0.1)
    with AsyncEngine(str(tiny_checkpoint("qwen2_5_vl")), backend_config=config) as engine:
        block_bytes = 2 * 64 * 2 * 2 * 16 * 2  # layers · tokens · (key, value) · heads · width · bytes
        assert 0.05 * free < loop_of(engine).stats().num_kv_blocks * block_bytes < 0.11 * free
        assert ask(engine, make_requests("qwen2_5_vl"))[2].error is None


@pytest.mark.parametrize("devices", [("cuda", "cpu"), ("cuda:0", "cuda:1"), ("cpu", "cuda")])
def test_a_vision_encoder_on_another_device(devices: tuple[str, str], tiny_checkpoint: Callable[[str], Path]) -> None:
    """Answers are those of one device, also while the first and after the weights were on the host."""
    if torch.cuda.device_count() < 1 + max(torch.device(name).index or 0 for name in devices):
        pytest.skip("needs two GPUs")
    name = "qwen2_5_vl"
    path = tiny_checkpoint(name)
    requests = make_requests(name)
    answers = []
    for device, encoder_device in ((devices[0], None), devices):
        config = EngineConfig(**{**IN_A_THREAD, "device_type": device}, dtype="float32", num_gpu_blocks=200)
        with AsyncEngine(str(path), backend_config=config, vision_config=VisionConfig(device=encoder_device)) as engine:
            answers.append([answer.token_ids for answer in ask(engine, requests)])
            engine.sleep(level=1)
            engine.wake_up()
            answers.append([answer.token_ids for answer in ask(engine, requests)])
    assert all(found == answers[0] for found in answers)

"""Several ranks answer as one does: the same requests, to engines of one, two and four processes on the CPU.

Two ranks are slices (`tp`) or stages (`pp`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from seesay import IMAGE_TOKEN, EngineConfig, GenerationConfig, Pipeline, pipeline
from seesay.engine.front.response import Response
from seesay.errors import ConfigError

OPTIONS: dict[str, Any] = {"device_type": "cpu", "session_len": 1024, "block_size": 16, "async_scheduling": True}
TIGHT: dict[str, Any] = {"max_prefill_token_num": 48, "num_gpu_blocks": 70, "num_cpu_blocks": 200}
"""Prompts are computed in chunks, and sequences of a few requests at once are preempted; the host has room for all."""
NARROW: dict[str, Any] = {"do_sample": True, "top_k": 4, "temperature": 0.8}
"""Of many tokens that are almost equally likely, the last bit of a logit would decide which is drawn."""
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green", "blue"]}, "number_of_shapes": {"type": "integer", "maximum": 9}},
    "required": ["colour", "number_of_shapes"],
}
JSON = {"type": "json_schema", "json_schema": {"name": "scene", "schema": SCHEMA, "strict": True}}


def load(num_slices: int, model: str = "seesay-demo", **options: Any) -> Pipeline:
    return pipeline(model, EngineConfig(**{**OPTIONS, "tp": num_slices, **options}))


def draw(colour: str, number: int) -> Image.Image:
    picture = Image.new("RGB", (200 + 8 * number, 160), "white")
    for index in range(number):
        ImageDraw.Draw(picture).rectangle((10 + 45 * index, 20, 45 + 45 * index, 60), fill=colour)
    return picture


PROMPTS: list[Any] = [
    "What can you do?",
    ("describe this image", draw("red", 2)),
    ("How many shapes are there?", draw("blue", 3)),
    ("What changed?", draw("green", 1), draw("green", 4)),
    "Add two and three. " * 20,
    ("describe this image", draw("red", 2)),
]


@pytest.fixture(scope="module")
def alone() -> Iterator[Pipeline]:
    with load(1) as pipe:
        yield pipe


@pytest.fixture(scope="module", params=["tp", "pp"])
def two(request: pytest.FixtureRequest) -> Iterator[Pipeline]:
    """Slices of every layer, and stages of some layers each."""
    with load(1, **{**TIGHT, request.param: 2}) as pipe:
        yield pipe


def texts(answers: Sequence[Response]) -> list[tuple[str, str | None]]:
    return [(one.text, one.finish_reason) for one in answers]


def compare(alone: Pipeline, two: Pipeline, prompts: list[Any], configs: list[GenerationConfig]) -> list[Response]:
    """Both answer alike. Returns the answers of several ranks."""
    found: list[Response] = two(prompts, gen_config=configs)
    assert texts(found) == texts(alone(prompts, gen_config=configs))
    return found


def test_greedy_answers_are_the_same_computed_and_cached(alone: Pipeline, two: Pipeline) -> None:
    configs = [GenerationConfig(max_new_tokens=40)] * len(PROMPTS)
    compare(alone, two, PROMPTS, configs)
    compare(alone, two, PROMPTS, configs)
    assert two._engine.stats().total_prefix_hit_tokens > 0


def test_many_requests_are_preempted_and_moved_to_the_host(alone: Pipeline, two: Pipeline) -> None:
    words = ("game", "frame", "red", "blue", "shape", "number", "chart")
    for count in range(6, 16):  # which blocks are on the host when they are needed depends on which requests meet
        prompts = 2 * [f"Tell me of {word}. " * count for word in words]
        compare(alone, two, prompts, [GenerationConfig(max_new_tokens=100, ignore_eos=True)] * len(prompts))
        stats = two._engine.stats()
        if stats.total_host_kv_loads:
            break
    assert stats.total_preemptions > 0 and stats.total_host_kv_loads > 0


def test_draws_penalties_and_biases(alone: Pipeline, two: Pipeline) -> None:
    each: list[dict[str, Any]] = [
        {},
        {"repetition_penalty": 1.2},
        {"frequency_penalty": 0.4, "min_new_tokens": 20},
        {"top_p": 0.9, "logprobs": 3},
        {"bad_words": ["red"], "no_repeat_ngram_size": 3},
        {"logit_bias": {70: 2.0}},
    ]
    configs = [
        GenerationConfig(random_seed=seed, max_new_tokens=30, **NARROW, **options) for seed, options in enumerate(each)
    ]
    compare(alone, two, PROMPTS, configs)


@pytest.mark.parametrize("jumps", [True, False])
def test_grammars(alone: Pipeline, two: Pipeline, jumps: bool) -> None:
    """Text without a choice is computed several tokens at a time where nothing weighs single tokens."""
    options: dict[str, Any] = {} if jumps else {"logprobs": 1}
    configs = [GenerationConfig(response_format=JSON, max_new_tokens=60, **options)] * len(PROMPTS)
    found = compare(alone, two, PROMPTS, configs)
    assert any(one.finish_reason == "stop" for one in found)


def test_scores(alone: Pipeline, two: Pipeline) -> None:
    configs = [
        GenerationConfig(max_new_tokens=8, prompt_logprobs=2, logprobs=2),
        GenerationConfig(max_new_tokens=8, output_logits="all"),
        GenerationConfig(max_new_tokens=8, output_last_hidden_state="all", output_logits="generation"),
        GenerationConfig(max_new_tokens=8),
        GenerationConfig(max_new_tokens=8, prompt_logprobs=1),
        GenerationConfig(max_new_tokens=1, prompt_logprobs=0),
    ]
    for one, right in zip(two(PROMPTS, gen_config=configs), alone(PROMPTS, gen_config=configs), strict=True):
        assert one.token_ids == right.token_ids
        for name in ("logits", "last_hidden_state"):
            mine, expected = getattr(one, name), getattr(right, name)
            assert (mine is None) == (expected is None)
            if mine is not None:
                np.testing.assert_allclose(mine, expected, atol=2e-3)
        if right.logprobs is not None:
            for mine, expected in zip(one.logprobs, right.logprobs, strict=True):
                assert mine == pytest.approx(expected, abs=2e-3)
    np.testing.assert_allclose(two.get_ppl(["one two three"]), alone.get_ppl(["one two three"]), atol=1e-3)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings(alone: Pipeline, two: Pipeline, pooling: Any) -> None:
    prompts = ["red", "a blue square " * 30, (f"see {IMAGE_TOKEN}", draw("red", 1))]
    mine, right = (np.array(pipe.embed(prompts, pooling=pooling)) for pipe in (two, alone))
    np.testing.assert_allclose(mine, right, atol=1e-4)


def test_streams_that_are_left(alone: Pipeline, two: Pipeline) -> None:
    """Requests that end early, in any order, change no other answer."""
    rng = random.Random(0)
    expected = texts(alone(PROMPTS, gen_config=GenerationConfig(max_new_tokens=30)))
    for _ in range(4):
        left = two.stream_infer(rng.choice(PROMPTS), gen_config=GenerationConfig(max_new_tokens=500, ignore_eos=True))
        next(iter(left))
        left.close()
        assert texts(two(PROMPTS, gen_config=GenerationConfig(max_new_tokens=30))) == expected


def test_four_ranks_of_which_two_share_heads(alone: Pipeline) -> None:
    """The built-in model has two heads of keys: each is on two of four ranks."""
    with load(4) as four:
        compare(alone, four, PROMPTS[:3], [GenerationConfig(max_new_tokens=20)] * 3)


def test_ranks_with_whole_experts(tiny_checkpoint: Callable[[str], Path]) -> None:
    path, config = str(tiny_checkpoint("qwen3_moe")), GenerationConfig(max_new_tokens=12, ignore_eos=True)
    prompts = ["one", "What is it?", "three four five"]
    with load(1, path, session_len=128) as one, load(2, path, session_len=128, expert_parallel=True) as ranks:
        assert texts(ranks(prompts, gen_config=config)) == texts(one(prompts, gen_config=config))
    with pytest.raises(ConfigError, match="expert_parallel: this model has no experts"):
        load(2, str(tiny_checkpoint("llama")), session_len=128, expert_parallel=True)
    with pytest.raises(ConfigError, match="expert_parallel needs tp of 2 or more"):
        load(1, path, session_len=128, expert_parallel=True)

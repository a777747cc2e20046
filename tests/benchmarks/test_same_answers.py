"""Answers do not depend on what makes them fast: batches, chunks, steps ahead, caches, CUDA graphs."""

from __future__ import annotations

import math
from typing import Any

import pytest
from same_answers import FEW_BLOCKS, Difference, ask_fast, ask_plainly, compare, make_scenes

from seesay import Response
from seesay.values import FinishReason

NUM_SCENES = 12
BF16_MARGIN = 0.05
"""Nats by which rounding to bfloat16 may make another token the likeliest."""


@pytest.mark.slow
def test_on_the_cpu_answers_are_equal() -> None:
    scenes = make_scenes(NUM_SCENES)
    options: dict[str, Any] = {"device_type": "cpu", "dtype": "float32", "num_gpu_blocks": 1024}
    plain = ask_plainly(scenes, **options)
    assert len({tuple(answer.token_ids) for answer in plain}) > NUM_SCENES / 3, "answers all alike prove nothing"
    ahead: dict[str, Any] = {"async_scheduling": True}
    for changes in (ahead, {"async_scheduling": False}, {**ahead, **FEW_BLOCKS}, {**ahead, "engine_process": True}):
        computed, cached = ask_fast(scenes, **{**options, **changes})
        assert compare(plain, computed) == compare(plain, cached) == [], changes
        assert share_cached(cached) > 0.5 > share_cached(computed), changes


def share_cached(answers: list[Response]) -> float:
    """The share of the prompts' tokens that came from the prefix cache."""
    usages = [answer.usage for answer in answers if answer.usage is not None]
    return sum(usage.cached_tokens for usage in usages) / sum(usage.prompt_tokens for usage in usages)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_on_a_gpu_answers_are_equal(dtype: str) -> None:
    scenes = make_scenes(200)
    options: dict[str, Any] = {"device_type": "cuda", "dtype": dtype, "num_gpu_blocks": 2000}
    plain = ask_plainly(scenes, **options)
    for fast in (*ask_fast(scenes, **options), *ask_fast(scenes, **{**options, **FEW_BLOCKS})):
        differences = compare(plain, fast)
        assert all(difference.margin < BF16_MARGIN for difference in differences), differences
        assert dtype == "bfloat16" or not differences


def test_differences_say_how_near_the_other_token_was() -> None:
    def answer(*token_ids: int, reason: FinishReason = "stop") -> Response:
        logprobs = [{token_id: -0.5, 100: -0.7} for token_id in token_ids]
        return Response("", token_ids=list(token_ids), logprobs=logprobs, finish_reason=reason)

    plain = [answer(1, 2, 3), answer(1, 2, 3), answer(1, 2), answer(4), answer(5)]
    fast = [answer(1, 2, 3), answer(1, 100, 9), answer(1, 2, 3), answer(7), answer(5, reason="length")]
    near, longer, far, other_end = compare(plain, fast)
    assert (near.scene, near.position) == (1, 1) and math.isclose(near.margin, 0.2)
    assert longer == Difference(2, -1, math.inf)
    assert far == Difference(3, 0, math.inf)
    assert other_end == Difference(4, -1, math.inf)


def test_errors_are_no_answers() -> None:
    failed = Response("out of memory", finish_reason="error")
    with pytest.raises(RuntimeError, match="scene 0: 'out of memory'"):
        compare([failed], [failed])

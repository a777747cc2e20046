"""The kernels that draw tokens against the torch implementation, which sorts. On a GPU the tests run as they are,
elsewhere in Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from triton_cases import DEVICE, MARKS, ON_GPU, make_scores, runs_here

from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.running import sampler

SIZES = [1, 63, 50_000, 152_064] if ON_GPU else [300]

pytestmark = MARKS


OPTIONS: list[dict[str, Any]] = [
    {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    for temperature, top_k, top_p, min_p in itertools.product((0.3, 2.0), (0, 5, 100), (1.0, 0.8), (0.0, 0.1))
]
"""The interpreter is slow: sizes here are small, and each draw counts."""


def draw_both(scores: torch.Tensor, params: list[SamplingParams], rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of `rows` of the scores, by the torch implementation and by the kernels; -1 for other rows."""
    from seesay.kernels import sampling

    assert len(set(rows)) == len(rows)
    points = torch.randint(1 << 32, (len(rows),), generator=torch.Generator().manual_seed(len(rows))) * 2 + 1
    draws = torch.from_numpy(sampler.make_draws(rows, points.tolist(), params)).to(DEVICE)
    expected, scores = torch.full((len(scores),), -1, device=DEVICE), scores.to(DEVICE)
    found, best = expected.clone(), scores.amax(dim=-1)
    sampler.draw_tokens(scores, best, draws, expected, most=scores.shape[1])
    sampling.draw_tokens(scores, best, draws, found, unit=sampler.WEIGHT_OF_BEST)
    return expected.cpu(), found.cpu()


@runs_here
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("spread", "dtype"),
    [
        (3.0, torch.float32),
        (0.0, torch.float16),
        pytest.param(0.1, torch.float32, marks=pytest.mark.slow),
        pytest.param(3.0, torch.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_the_same_tokens_as_with_sorting(size: int, spread: float, dtype: torch.dtype) -> None:
    """Flat and steep distributions, ties, rows in any order, some left out."""
    params = [SamplingParams(greedy=False, **options) for options in OPTIONS]
    rows = [(7 * i + 3) % (len(params) + 1) for i in range(len(params))]
    expected, found = draw_both(make_scores(len(params) + 1, size, spread, dtype), params, rows)
    assert found.tolist() == expected.tolist()


@runs_here
def test_neighbours_share_the_mass() -> None:
    """The likeliest tokens in one group, all others forbidden."""
    scores = torch.full((2 * len(OPTIONS), 200), float("-inf"))
    scores[0::2, 64:70] = torch.tensor([1.0, 2.0, 3.0, 3.0, 2.0, 1.0])
    scores[1::2, 199] = 0.0
    params = [SamplingParams(greedy=False, **options) for options in OPTIONS for _ in range(2)]
    expected, found = draw_both(scores, params, list(range(len(params))))
    assert found.tolist() == expected.tolist()


@runs_here
def test_rows_without_a_finite_score_harm_nobody() -> None:
    scores = make_scores(4, 130, 2.0, torch.float32)
    params = [SamplingParams(greedy=False, top_k=5)] * 4
    expected, _ = draw_both(scores, params, [0, 1, 2, 3])
    scores[0], scores[1, 7], scores[2, 9] = float("-inf"), float("nan"), float("inf")
    _, found = draw_both(scores, params, [0, 1, 2, 3])
    assert found.tolist() == [0, 0, 0, expected[3]]

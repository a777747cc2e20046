"""The kernels that draw tokens against the torch implementation, which sorts. On a GPU the tests run as they are,
elsewhere in Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from triton_cases import DEVICE, MARKS, ON_GPU, runs_here

from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.running import logit_changes, sampler

SIZES = [1, 63, 50_000, 152_064] if ON_GPU else [300]

pytestmark = MARKS


OPTIONS: list[dict[str, Any]] = [
    {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    for temperature, top_k, top_p, min_p in itertools.product((0.3, 2.0), (0, 5, 100), (1.0, 0.8), (0.0, 0.1))
]
"""The interpreter is slow: sizes here are small, and each draw counts."""


def make_scores(num_rows: int, size: int, spread: float, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size + int(10 * spread))
    return (torch.randn(num_rows, size, generator=generator) * spread).to(dtype)


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


@runs_here
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_banned_tokens_are_avoided(dtype: torch.dtype) -> None:
    """The best banned, the best three, others, none, all; equally good ones; a NaN that is banned and one that is not;
    rows that are left out."""
    from seesay.kernels import sampling

    size = 5000
    assert size > sampling.SEARCH_BLOCK
    scores = make_scores(9, size, 2.0, dtype)
    ranked = scores.argsort(dim=-1, descending=True, stable=True)
    scores[3, [40, 4500]] = scores[3].max() + 1
    scores[5] = scores[5].masked_fill(scores[5] < scores[5, ranked[5, 3]], float("-inf"))
    scores[6, 77] = float("nan")
    scores[7, [5, 78]] = float("nan")
    banned = {8: [int(ranked[8, 0])], 1: ranked[1, :3].tolist(), 2: [int(ranked[2, 5])], 3: [40, size + 9], 4: []}
    banned |= {5: ranked[5, :4].tolist(), 6: [77], 7: [5]}
    best, token_ids = scores.max(dim=-1)
    expected = scores.clone()
    for row, ids in banned.items():
        expected[row, [i for i in ids if i < size]] = float("-inf")
    expected_best, expected_ids = expected.max(dim=-1)
    starts = torch.tensor([0, *itertools.accumulate(map(len, banned.values()))])
    lists = (torch.tensor(list(banned)), starts, torch.tensor(list(itertools.chain.from_iterable(banned.values()))))
    best, token_ids, *rest = (tensor.to(DEVICE) for tensor in (best, token_ids, scores, *lists))
    sampling.avoid_tokens(rest[0], best, token_ids, *rest[1:])
    assert best.isfinite().tolist() == expected_best.isfinite().tolist()
    fine = expected_best.isfinite()
    assert torch.equal(best.cpu()[fine], expected_best[fine])
    assert torch.equal(token_ids.cpu()[fine], expected_ids[fine])


@runs_here
@pytest.mark.parametrize("last", [7, 8, 1, None], ids=["new", "generated before", "in the prompt", "none"])
def test_penalties(last: int | None) -> None:
    """Rows of no token, of a few, and of more than a program takes at a time, among rows that have no penalties."""
    from seesay.kernels import sampling

    size, rows = 5000, [4, 0, 2]
    scores = make_scores(5, size, 2.0, torch.float32)
    lists = [torch.tensor([], dtype=torch.int32), torch.tensor([1, 8, 30, 9]), torch.randperm(size)[:2500]]
    starts = torch.tensor([0, *itertools.accumulate(map(len, lists))])
    ids = torch.cat(lists).int()
    counts = (ids % 5).masked_fill(ids == 1, 0).int()
    penalties = torch.tensor([[1.3, 0.5, 0.25], [0.7, 0.0, 0.0], [1.1, -1.0, 0.3]], dtype=torch.float64)
    pending = torch.full((3,), -1 if last is None else 1)
    previous = torch.tensor([3, last or 0])
    arguments = (torch.tensor(rows), starts, ids, counts, penalties, pending, previous)
    expected = scores.clone()
    logit_changes.penalize_tokens(expected, *arguments)
    found = scores.to(DEVICE, copy=True)
    sampling.penalize_tokens(found, *(tensor.to(DEVICE) for tensor in arguments))
    assert not torch.equal(expected, scores)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-6, atol=1e-6)

"""The kernels that change logits against the torch implementation. On a GPU the tests run as they are, elsewhere in
Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

import itertools

import pytest
import torch
from triton_cases import DEVICE, MARKS, make_scores, runs_here

from seesay.llm.running.logit_changes import penalize_tokens

pytestmark = MARKS


@runs_here
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_banned_tokens_are_avoided(dtype: torch.dtype) -> None:
    """The best banned, the best three, others, none, all; equally good ones; a NaN that is banned and one that is not;
    rows that are left out."""
    from seesay.kernels import logit_changes
    from seesay.kernels.sampling import SEARCH_BLOCK

    size = 5000
    assert size > SEARCH_BLOCK
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
    logit_changes.avoid_tokens(rest[0], best, token_ids, *rest[1:])
    assert best.isfinite().tolist() == expected_best.isfinite().tolist()
    fine = expected_best.isfinite()
    assert torch.equal(best.cpu()[fine], expected_best[fine])
    assert torch.equal(token_ids.cpu()[fine], expected_ids[fine])


@runs_here
@pytest.mark.parametrize("last", [7, 8, 1, None], ids=["new", "generated before", "in the prompt", "none"])
def test_penalties(last: int | None) -> None:
    """Rows of no token, of a few, and of more than a program takes at a time, among rows that have no penalties."""
    from seesay.kernels import logit_changes

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
    penalize_tokens(expected, *arguments)
    found = scores.to(DEVICE, copy=True)
    logit_changes.penalize_tokens(found, *(tensor.to(DEVICE) for tensor in arguments))
    assert not torch.equal(expected, scores)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-6, atol=1e-6)

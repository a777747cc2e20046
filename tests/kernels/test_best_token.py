"""The kernels that find the greatest logit of each row against `torch.max`. On a GPU the tests run as they are,
elsewhere in Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

import math

import pytest
import torch
from triton_cases import DEVICE, MARKS, make_scores, runs_here

pytestmark = MARKS

SIZES = [1, 4096, 4097, 9000]


def find_both(logits: torch.Tensor, faults: torch.Tensor | None = None) -> tuple[list[torch.Tensor], ...]:
    """The greatest and its token by torch, on the CPU, and by the kernels."""
    from seesay.kernels.best_token import find_best

    best, token_ids = logits.max(dim=-1)
    found = find_best(logits.to(DEVICE), None if faults is None else faults.to(DEVICE))
    return [best if faults is None else best + faults, token_ids], [part.cpu() for part in found]


@runs_here
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_finds_what_torch_finds(size: int, dtype: torch.dtype) -> None:
    """Rows of both signs, and coarse ones with many equal logits, of which the first is taken."""
    logits = torch.cat((make_scores(3, size, 3.0, dtype), make_scores(2, size, 3.0, dtype).round().abs().neg()))
    (best, token_ids), found = find_both(logits)
    assert found[0].dtype == dtype and found[0].tolist() == best.tolist()
    assert found[1].tolist() == [row.tolist().index(value) for row, value in zip(logits, best.tolist(), strict=True)]
    assert token_ids.shape == found[1].shape


@runs_here
def test_takes_nan_infinities_and_both_zeros_as_torch_does() -> None:
    rows = torch.full((6, 5000), -math.inf)
    rows[1, 4100] = -1e30
    rows[2, [7, 4999]] = math.inf
    rows[3, [4998, 4200]] = math.nan
    rows[3, 4] = math.inf
    rows[4, [3, 4500]] = torch.tensor([-0.0, 0.0])
    rows[5, [3, 4500]] = torch.tensor([0.0, -0.0])
    (best, _), found = find_both(rows)
    assert torch.equal(found[0].nan_to_num(nan=7.0), best.nan_to_num(nan=7.0))
    tokens = found[1].tolist()
    assert tokens[:3] + tokens[4:] == [0, 4100, 7, 3, 3]
    assert 0 <= tokens[3] < 5000


@runs_here
def test_faults_are_told_with_the_greatest() -> None:
    logits = torch.tensor([[1.0, 2.0], [4.0, 3.0]], dtype=torch.bfloat16)
    _, (best, token_ids) = find_both(logits, torch.tensor([0.0, math.nan]))
    assert best[0] == 2 and best[1].isnan() and token_ids.tolist() == [1, 0]


@runs_here
def test_takes_rows_that_lie_apart_and_none() -> None:
    logits = make_scores(4, 700, 3.0, torch.float32)
    from seesay.kernels.best_token import find_best

    best, token_ids = find_best(logits.to(DEVICE)[::2, :600])
    assert best.tolist() == logits[::2, :600].amax(dim=-1).tolist()
    assert token_ids.tolist() == logits[::2, :600].argmax(dim=-1).tolist()
    assert [len(part) for part in find_best(logits[:0].to(DEVICE))] == [0, 0]

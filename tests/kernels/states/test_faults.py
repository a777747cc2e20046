"""The kernel that notes what is not finite. On a GPU the tests run as they are, elsewhere in
Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

import pytest
import torch
from triton_cases import DEVICE, DTYPES, MARKS, random, runs_here

pytestmark = MARKS


@runs_here
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_tokens_with_numbers_that_are_not_finite_are_noted(dtype: torch.dtype, bad: float) -> None:
    from seesay.kernels.states.faults import note_faults

    x, noted = random(5, 2100, dtype=dtype)[:, 1:], torch.zeros(5, device=DEVICE)
    note_faults(x, noted)
    assert not noted.any()
    x[1, 0], x[3, 2098], noted[4] = bad, bad, 2.0
    note_faults(x, noted)
    assert noted.isnan().tolist() == [False, True, False, True, False] and noted[4] == 2.0

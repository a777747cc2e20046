"""Gated heads by the kernel, against float64. On a GPU the tests run as they are, elsewhere in
Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

import pytest
import torch
from triton_cases import DTYPES, MARKS, assert_close, random, runs_here

from seesay.llm.ops.states import gate_heads

pytestmark = MARKS


@runs_here
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("is_sigmoid", [False, True])
def test_gated_heads_equal_those_in_torch(dtype: torch.dtype, *, is_sigmoid: bool) -> None:
    from seesay.kernels.states import gated_heads

    output, mixed, weight = random(5, 3, 40), random(5, 130, dtype=dtype, seed=1), random(40, dtype=dtype, seed=2)
    found = gated_heads.gate_heads(output, mixed[:, 4:124], weight, 1e-6, is_sigmoid=is_sigmoid)
    assert found.dtype == dtype and found.shape == (5, 120)
    same = gate_heads(output.cpu(), mixed[:, 4:124].cpu(), weight.cpu(), 1e-6, is_sigmoid=is_sigmoid)
    exact = gate_heads(
        output.cpu().double(), mixed[:, 4:124].cpu().double(), weight.cpu().double(), 1e-6, is_sigmoid=is_sigmoid
    )
    assert_close(found.cpu(), exact.double(), 4.0)
    assert_close(same, exact.double(), 4.0)

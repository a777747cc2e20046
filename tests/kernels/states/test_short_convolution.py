"""One step of a short convolution by the kernel, against float64. On a GPU the tests run as they are, elsewhere in
Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

import pytest
import torch
from triton_cases import DEVICE, DTYPES, MARKS, assert_close, random, runs_here

from seesay.llm.ops.state_plan import StatePlan
from seesay.llm.ops.states import convolve

pytestmark = MARKS
SLOTS = 7


@runs_here
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("size", "num_taps", "has_bias", "activates"), [(40, 4, False, True), (300, 3, True, False)])
def test_a_step_of_a_convolution_equals_that_in_torch(
    size: int, num_taps: int, dtype: torch.dtype, *, has_bias: bool, activates: bool
) -> None:
    from seesay.kernels.states import short_convolution

    mixed, weight = random(3, size + 7, dtype=dtype), random(size, 1, num_taps, dtype=dtype, seed=1)[:, 0]
    bias = random(size, dtype=dtype, seed=2) if has_bias else None
    pool = random(SLOTS, 2, num_taps - 1, size, dtype=dtype, seed=3)  # of two layers
    slots, expected_pool = torch.tensor([5, 0, 3], device=DEVICE), pool.cpu().double()
    plan = StatePlan(slots=slots.cpu(), num_decode=3)
    exact = [None if part is None else part.cpu().double() for part in (mixed[:, 2:-5], weight, bias)]
    assert exact[0] is not None and exact[1] is not None
    expected = convolve(exact[0], expected_pool[:, 1], exact[1], exact[2], plan, activates=activates)
    output = short_convolution.convolve_step(mixed[:, 2:-5], pool[:, 1], weight, bias, slots, activates=activates)
    assert output.dtype == dtype
    assert_close(output.cpu(), expected, 4.0)
    assert torch.equal(pool.cpu(), expected_pool.to(dtype))

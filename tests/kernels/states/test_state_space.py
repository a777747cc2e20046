"""State spaces by the kernel against the torch implementation. On a GPU the tests run as they are, elsewhere in
Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from triton_cases import DEVICE, DTYPES, MARKS, assert_close, random, runs_here

from seesay.llm.ops import RowLayout
from seesay.llm.ops.state_plan import make_state_plan
from seesay.llm.ops.states import SpaceWeights, run_state_space

pytestmark = MARKS
SLOTS = 7


@runs_here
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lengths", [[1, 1, 1], [1, 5, 3]], ids=str)
@pytest.mark.parametrize(
    ("groups", "heads", "state_size", "head_dim", "is_per_element"),
    [(1, 2, 16, 32, False), (2, 6, 12, 10, False), (1, 40, 5, 1, True)],
)
def test_a_scan_equals_that_in_torch(
    groups: int,
    heads: int,
    state_size: int,
    head_dim: int,
    lengths: list[int],
    dtype: torch.dtype,
    *,
    is_per_element: bool,
) -> None:
    from seesay.kernels.states import state_space

    count, keys, values = sum(lengths), groups * state_size, heads * head_dim
    mixed = random(count, 2 * keys + values + heads, dtype=dtype)
    query, key, value, rate = torch.split(mixed, [keys, keys, values, heads], dim=1)
    rate[0, 0] = 60.0
    query, key = (x.view(count, groups, state_size) for x in (query, key))
    value = value.view(count, heads, head_dim)
    shape = (heads, state_size) if is_per_element else (heads,)
    weights = SpaceWeights(random(*shape, seed=1), random(heads, seed=2), random(heads, seed=4))
    limits = (0.1, math.inf) if is_per_element else (0.0, 3.0)
    pool = random(SLOTS, 2, groups, state_size, values // groups, seed=3)  # of two layers
    slots = torch.tensor([5, 0, 3], device=DEVICE)
    layout = RowLayout(
        cu_seqlens_q=np.cumsum([0, *lengths]), kv_lens=np.array(lengths), block_table=np.zeros((3, 1), np.int64),
        block_size=4, num_decode=lengths.count(1),
    )  # fmt: skip
    plan = make_state_plan(layout, slots.cpu(), num_taps=2, device=torch.device("cpu"))
    expected_pool = pool.cpu().clone()
    expected = run_state_space(
        query.cpu(), key.cpu(), value.cpu(), rate.cpu(), SpaceWeights(*(x.cpu() for x in weights)), limits,
        expected_pool[:, 1], plan, torch.zeros(count),
    )  # fmt: skip
    bounds = None if plan.bounds is None else plan.bounds.to(DEVICE)
    output = state_space.scan(query, key, value, rate, weights, limits, pool[:, 1], slots, bounds)
    assert_close(output.cpu(), expected.double(), 8.0, tolerances=dict.fromkeys(DTYPES, 2e-6))
    assert_close(pool[:, 1].cpu(), expected_pool[:, 1].double(), 8.0)
    assert torch.equal(pool[:, 0].cpu(), expected_pool[:, 0])
    others = [slot for slot in range(SLOTS) if slot not in slots.tolist()]
    assert torch.equal(pool[others].cpu(), expected_pool[others])

"""One step of the gated delta rule by the kernel against the torch implementation. On a GPU the tests run as they are,
elsewhere in Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

import pytest
import torch
from triton_cases import DEVICE, DTYPES, MARKS, assert_close, random, runs_here

from seesay.llm.ops.state_plan import StatePlan
from seesay.llm.ops.states import run_delta_rule

pytestmark = MARKS
SLOTS = 7


@runs_here
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("num_key_heads", "num_heads", "key_dim", "value_dim", "by_component"),
    [(1, 1, 16, 32, False), (2, 6, 8, 10, False), (3, 3, 20, 40, False), (2, 2, 12, 40, True)],
)
def test_a_step_equals_that_in_torch(
    num_key_heads: int, num_heads: int, key_dim: int, value_dim: int, dtype: torch.dtype, *, by_component: bool
) -> None:
    from seesay.kernels.states import delta_rule

    num_rows, keys, values = 3, num_key_heads * key_dim, num_heads * value_dim
    num_rates = keys if by_component else num_heads
    mixed = random(num_rows, 2 * keys + values + num_heads + num_rates, dtype=dtype)
    query, key, value, beta, rate = torch.split(mixed, [keys, keys, values, num_heads, num_rates], dim=1)
    rate[0, 0] = 60.0
    rate_shape = (num_heads, key_dim) if by_component else (num_heads,)
    rate = rate.view(num_rows, *rate_shape)
    query, key = (x.view(num_rows, num_key_heads, key_dim) for x in (query, key))
    value = value.view(num_rows, num_heads, value_dim)
    rates = random(num_heads, seed=1), random(*rate_shape, seed=2)
    pool = random(SLOTS, 2, num_heads, key_dim, value_dim, seed=3)  # of two layers
    slots = torch.tensor([5, 0, 3], device=DEVICE)
    expected_pool = pool.cpu().clone()
    plan = StatePlan(slots=slots.cpu(), num_decode=num_rows)
    log_rate, bias = (x.cpu() for x in rates)
    expected = run_delta_rule(
        query.cpu(), key.cpu(), value.cpu(), beta.cpu(), rate.cpu(), (log_rate, bias), expected_pool[:, 1], plan,
        torch.zeros(num_rows),
    )  # fmt: skip
    faults = torch.zeros(num_rows, device=DEVICE)
    output = delta_rule.step(query, key, value, beta, rate, rates, pool[:, 1], slots, faults)
    assert not faults.any()
    assert_close(output.cpu(), expected.double(), 4.0, tolerances=dict.fromkeys(DTYPES, 2e-6))
    assert_close(pool[:, 1].cpu(), expected_pool[:, 1].double(), 4.0)
    assert torch.equal(pool[:, 0].cpu(), expected_pool[:, 0])
    others = [slot for slot in range(SLOTS) if slot not in slots.tolist()]
    assert torch.equal(pool[others].cpu(), expected_pool[others])


@runs_here
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_whose_output_is_not_finite_is_noted(bad: float) -> None:
    from seesay.kernels.states import delta_rule

    query, key, value = random(3, 1, 16), random(3, 1, 16, seed=1), random(3, 2, 40, seed=2)
    beta, rate = random(3, 2, seed=3), random(3, 2, seed=4)
    pool, slots, faults = random(SLOTS, 2, 16, 40, seed=5), torch.tensor([5, 0, 3], device=DEVICE), torch.zeros(3)
    pool[0, 1, 4, 39] = bad
    faults = faults.to(DEVICE)
    rates = random(2, seed=6), random(2, seed=7)
    delta_rule.step(query, key, value, beta, rate, rates, pool, slots, faults)
    assert faults.isnan().tolist() == [False, True, False] and not faults[::2].any()

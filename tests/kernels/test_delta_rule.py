"""One step of layers with a state by kernels, against the torch implementation. On a GPU the tests run as they are,
elsewhere in Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

import pytest
import torch
from triton_cases import DEVICE, DTYPES, MARKS, assert_close, random, runs_here

from seesay.llm.ops.state_plan import StatePlan
from seesay.llm.ops.states import convolve, gate_heads, run_delta_rule

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
    from seesay.kernels import delta_rule

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
    from seesay.kernels import delta_rule

    query, key, value = random(3, 1, 16), random(3, 1, 16, seed=1), random(3, 2, 40, seed=2)
    beta, rate = random(3, 2, seed=3), random(3, 2, seed=4)
    pool, slots, faults = random(SLOTS, 2, 16, 40, seed=5), torch.tensor([5, 0, 3], device=DEVICE), torch.zeros(3)
    pool[0, 1, 4, 39] = bad
    faults = faults.to(DEVICE)
    rates = random(2, seed=6), random(2, seed=7)
    delta_rule.step(query, key, value, beta, rate, rates, pool, slots, faults)
    assert faults.isnan().tolist() == [False, True, False] and not faults[::2].any()


@runs_here
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("size", "num_taps", "has_bias", "activates"), [(40, 4, False, True), (300, 3, True, False)])
def test_a_step_of_a_convolution_equals_that_in_torch(
    size: int, num_taps: int, dtype: torch.dtype, *, has_bias: bool, activates: bool
) -> None:
    from seesay.kernels import short_convolution

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


@runs_here
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("is_sigmoid", [False, True])
def test_gated_heads_equal_those_in_torch(dtype: torch.dtype, *, is_sigmoid: bool) -> None:
    from seesay.kernels import gated_heads

    output, mixed, weight = random(5, 3, 40), random(5, 130, dtype=dtype, seed=1), random(40, dtype=dtype, seed=2)
    found = gated_heads.gate_heads(output, mixed[:, 4:124], weight, 1e-6, is_sigmoid=is_sigmoid)
    assert found.dtype == dtype and found.shape == (5, 120)
    same = gate_heads(output.cpu(), mixed[:, 4:124].cpu(), weight.cpu(), 1e-6, is_sigmoid=is_sigmoid)
    exact = gate_heads(
        output.cpu().double(), mixed[:, 4:124].cpu().double(), weight.cpu().double(), 1e-6, is_sigmoid=is_sigmoid
    )
    assert_close(found.cpu(), exact.double(), 4.0)
    assert_close(same, exact.double(), 4.0)


@runs_here
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_tokens_with_numbers_that_are_not_finite_are_noted(dtype: torch.dtype, bad: float) -> None:
    from seesay.kernels.faults import note_faults

    x, noted = random(5, 2100, dtype=dtype)[:, 1:], torch.zeros(5, device=DEVICE)
    note_faults(x, noted)
    assert not noted.any()
    x[1, 0], x[3, 2098], noted[4] = bad, bad, 2.0
    note_faults(x, noted)
    assert noted.isnan().tolist() == [False, True, False, True, False] and noted[4] == 2.0

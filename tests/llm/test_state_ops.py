"""Operations over states against loops over tokens, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from seesay.llm.ops import DecodeRows, RowLayout, torch_state_space, torch_states
from seesay.llm.ops.state_plan import CHUNK, StatePlan, make_state_plan

CPU = torch.device("cpu")
HEADS, KEY, VALUE, SLOTS, SIZE, TAPS = 3, 5, 4, 9, 6, 4
LENGTHS = [
    [1, 1, 1],
    [1, 1, 2],
    [CHUNK - 1],
    [CHUNK],
    [1, CHUNK + 1, 3],
    [1, 5, 3 * CHUNK + 7, 2 * CHUNK, 1 + CHUNK, 2],
]


def make_plan(lengths: list[int], *, is_on_device: bool = False) -> StatePlan:
    slots = torch.tensor([8, 7, 5, 0, 2, 4])[: len(lengths)]
    count = len(lengths)
    if is_on_device:
        rows = DecodeRows(kv_lens=torch.ones(count, dtype=torch.int32), block_table=torch.zeros(count, 1).int())
        return make_state_plan(rows, slots, num_taps=TAPS, device=CPU)
    layout = RowLayout(
        cu_seqlens_q=np.cumsum([0, *lengths]),
        kv_lens=np.array(lengths) + 3,
        block_table=np.zeros((count, 99), np.int64),
        block_size=4,
        num_decode=sum(length == 1 for length in lengths),
    )
    return make_state_plan(layout, slots, num_taps=TAPS, device=CPU)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def run_delta_rule(
    lengths: list[int], plan: StatePlan, *, by_component: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output and states of the operation, and of a loop. by_component: each component of a key has its own decay."""
    count = sum(lengths)
    query, key = torch_states.normalize(draw(count, HEADS, KEY)), torch_states.normalize(draw(count, HEADS, KEY))
    value, beta = draw(count, HEADS, VALUE), draw(count, HEADS).sigmoid()
    decay = -draw(count, HEADS, *(KEY,) * by_component).exp() * 0.3
    states = draw(SLOTS, HEADS, KEY, VALUE)
    expected_states = states.double()
    expected, first = torch.empty(count, HEADS, VALUE, dtype=torch.float64), 0
    for slot, length in zip(plan.slots.tolist(), lengths, strict=True):
        state = expected_states[slot]
        for token in range(first, first + length):
            state *= decay[token].double().exp().view(HEADS, -1, 1)
            for head in range(HEADS):
                known = key[token, head].double() @ state[head]
                state[head] += torch.outer(key[token, head].double(), beta[token, head] * (value[token, head] - known))
                expected[token, head] = query[token, head].double() @ state[head]
        first += length
    output = torch_states.delta_rule(query, key, value, decay, beta, states, plan)
    return output, states, expected, expected_states


@pytest.mark.parametrize("by_component", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_the_delta_rule_equals_a_loop(lengths: list[int], *, by_component: bool) -> None:
    torch.manual_seed(1)
    plan = make_plan(lengths)
    output, states, expected, expected_states = run_delta_rule(lengths, plan, by_component=by_component)
    torch.testing.assert_close(output.double(), expected, atol=2e-5, rtol=0)
    torch.testing.assert_close(states.double(), expected_states, atol=2e-5, rtol=0)


def test_rows_of_a_graph_are_decode_rows() -> None:
    torch.manual_seed(2)
    output, states, expected, expected_states = run_delta_rule([1, 1, 1], make_plan([1, 1, 1], is_on_device=True))
    torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(states.double(), expected_states, atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", [(HEADS,), (HEADS, KEY)])
def test_a_strong_decay_overflows_nothing(shape: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    plan, count = make_plan([2 * CHUNK]), 2 * CHUNK
    key, value = torch_states.normalize(draw(count, HEADS, KEY)), draw(count, HEADS, VALUE)
    states = draw(SLOTS, HEADS, KEY, VALUE)
    decay = torch.full((count, *shape), -80.0)
    output = torch_states.delta_rule(key, key, value, decay, torch.ones(count, HEADS), states, plan)
    assert bool(output.isfinite().all())
    torch.testing.assert_close(output, value, atol=1e-5, rtol=0)


SPACES = [(2, 6, 5, 4, False), (1, 3, 5, 1, True), (2, 4, 3, 2, True)]
"""Groups, heads, components of keys and of values, and whether each element of a state has a rate of its own."""


def loop_over_tokens(
    tensors: tuple[torch.Tensor, ...], states: torch.Tensor, lengths: list[int], slots: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    query, key, value, steps, rates = (x.double() for x in tensors)
    states, expected, first = states.double(), torch.empty_like(value), 0
    (num_heads, head_dim), groups = value.shape[1:], key.shape[1]
    for slot, length in zip(slots, lengths, strict=True):
        for token, head in ((token, head) for token in range(first, first + length) for head in range(num_heads)):
            group, place = divmod(head, num_heads // groups)
            state = states[slot, group, :, place * head_dim : (place + 1) * head_dim]
            state *= (steps[token, head] * rates[head]).exp().view(-1, 1)
            state += torch.outer(key[token, group], steps[token, head] * value[token, head])
            expected[token, head] = query[token, group] @ state
        first += length
    return expected, states


@pytest.mark.parametrize(("groups", "heads", "keys", "values", "is_per_element"), SPACES)
@pytest.mark.parametrize("lengths", LENGTHS[1:], ids=str)
def test_state_spaces_equal_a_loop(
    lengths: list[int], groups: int, heads: int, keys: int, values: int, *, is_per_element: bool
) -> None:
    torch.manual_seed(5)
    count, plan = sum(lengths), make_plan(lengths)
    rates = -draw(heads, keys).exp() if is_per_element else -draw(heads).exp()
    query, key, value = draw(count, groups, keys), draw(count, groups, keys), draw(count, heads, values)
    steps = draw(count, heads).exp() * 0.2
    states = draw(SLOTS, groups, keys, heads * values // groups)
    tensors = (query, key, value, steps, rates)
    expected, expected_states = loop_over_tokens(tensors, states, lengths, plan.slots.tolist())
    output = torch_state_space.scan(query, key, value, steps, rates, states, plan)
    torch.testing.assert_close(output.double(), expected, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(states.double(), expected_states, atol=2e-5, rtol=1e-5)


def test_a_state_space_that_fades_at_once_overflows_nothing() -> None:
    torch.manual_seed(6)
    count = 2 * CHUNK
    key, value = draw(count, 1, KEY), draw(count, HEADS, VALUE)
    steps, states = torch.full((count, HEADS), 90.0), draw(SLOTS, 1, KEY, HEADS * VALUE)
    output = torch_state_space.scan(key, key, value, steps, -torch.ones(HEADS), states, make_plan([count]))
    assert bool(output.isfinite().all())
    torch.testing.assert_close(output, 90 * value * key.square().sum(dim=-1, keepdim=True), atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_convolutions_equal_a_loop(lengths: list[int], has_bias: bool) -> None:
    torch.manual_seed(4)
    x, states = draw(sum(lengths), SIZE), draw(SLOTS, TAPS - 1, SIZE)
    weight, bias = draw(SIZE, TAPS), draw(SIZE) if has_bias else None
    plan, expected, expected_states, first = make_plan(lengths), [], states.clone(), 0
    for slot, length in zip(plan.slots.tolist(), lengths, strict=True):
        inputs = torch.cat((states[slot], x[first : first + length]))
        for token in range(length):
            y = (inputs[token : token + TAPS] * weight.t()).sum(dim=0)
            expected.append(y if bias is None else y + bias)
        expected_states[slot] = inputs[-(TAPS - 1) :]
        first += length
    output = torch_states.convolve(x, states, weight, bias, plan)
    torch.testing.assert_close(output, torch.stack(expected), atol=1e-5, rtol=1e-5)
    assert torch.equal(states, expected_states), "slots of others stay"

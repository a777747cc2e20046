"""The kernels that read and advance the rows' state, against the torch implementation on the CPU. On a GPU the tests
run as they are, elsewhere in Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from triton_cases import DEVICE, MARKS, runs_here

from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.running import device_rows
from seesay.llm.running.device_rows import LENGTH, OFFSET, OPTIONS, SEED, STRETCH, TOKEN, DeviceRows
from seesay.llm.running.sampler import draw_words, make_draws, make_points

NUM_SLOTS, MAX_BLOCKS, BLOCK_SIZE, SCRATCH = 7, 600, 4, 9999

pytestmark = MARKS


def make_rows() -> DeviceRows:
    """Rows of random state on the CPU, one as long as its table allows. The padding has the state of a new table."""
    rng = np.random.default_rng(0)
    rows = DeviceRows(num_slots=NUM_SLOTS, max_blocks=MAX_BLOCKS, scratch_block=SCRATCH, device=torch.device("cpu"))
    state = rows.state.numpy()[:NUM_SLOTS]
    state[:, TOKEN] = rng.integers(0, 1 << 31, NUM_SLOTS)
    state[:, LENGTH] = rng.integers(1, MAX_BLOCKS * BLOCK_SIZE - 1, NUM_SLOTS)
    state[:3, LENGTH] = MAX_BLOCKS * BLOCK_SIZE - 1, 1, 3
    state[:, OFFSET] = rng.integers(-100, 100, NUM_SLOTS)
    state[:, STRETCH] = rng.uniform(0, 3, NUM_SLOTS).view(np.int64)
    state[:, SEED] = rng.integers(-(1 << 63), (1 << 63) - 1, NUM_SLOTS)
    rows.block_table[:NUM_SLOTS] = torch.from_numpy(rng.integers(0, 5000, (NUM_SLOTS, MAX_BLOCKS)))
    return rows


@runs_here
@pytest.mark.parametrize("num_axes", [1, 3])
@pytest.mark.parametrize("slots", [[2], [6, 0, 3, 1], [4, 5, NUM_SLOTS, NUM_SLOTS, NUM_SLOTS]], ids=str)
def test_a_step_gathers_its_rows_and_advances_them(slots: list[int], num_axes: int) -> None:
    from seesay.kernels import row_state

    rows, at = make_rows(), torch.tensor(slots)
    state, block_table = rows.state.to(DEVICE, copy=True), rows.block_table.to(DEVICE)
    for _ in range(3):
        rows.state[0, LENGTH].clamp_(max=MAX_BLOCKS * BLOCK_SIZE - 1)
        state[0, LENGTH].clamp_(max=MAX_BLOCKS * BLOCK_SIZE - 1)
        lengths = rows.state[at, LENGTH]
        expected = device_rows.begin_decode(rows, at, rows.block_table, block_size=BLOCK_SIZE, num_axes=num_axes)
        tables = torch.full((NUM_SLOTS, MAX_BLOCKS), SCRATCH, dtype=torch.int32, device=DEVICE)
        found = device_rows.DecodeInput(
            *row_state.begin_decode(state, block_table, at.to(DEVICE), tables, block_size=BLOCK_SIZE, num_axes=num_axes)
        )
        assert torch.equal(state.cpu(), rows.state)
        assert rows.state[at, LENGTH].tolist() == [n + (s < NUM_SLOTS) for n, s in zip(lengths, slots, strict=True)]
        for name, ours, theirs in zip(found._fields[:-1], found, expected, strict=False):
            assert ours.dtype == theirs.dtype and torch.equal(ours.cpu(), theirs), name
        for own, known, length in zip(found.block_table.cpu(), expected.block_table, lengths, strict=True):
            used = int(length) // BLOCK_SIZE + 1
            assert torch.equal(own[:used], known[:used]) and bool((own[used:] == SCRATCH).all())


@runs_here
def test_draws_are_those_that_the_host_makes() -> None:
    from seesay.kernels import row_state

    rows, params = make_rows(), list[SamplingParams]()
    options: tuple[dict[str, Any], ...]
    options = ({}, {"top_k": 7}, {"top_p": 0.3}, {"min_p": 0.2}, {"temperature": 1e-4, "top_k": 1 << 62})
    for slot in range(NUM_SLOTS):
        params.append(SamplingParams(greedy=False, **options[slot % len(options)]))
        rows.state[slot, OPTIONS:] = torch.from_numpy(draw_words(params[-1:])[0])
    slots, at = [5, 0, 1, 6, 2, 4], [0, 2, 3, 7, 8, 11]
    words = rows.state.numpy()[slots].view(np.uint64)
    points = make_points(words[:, SEED], words[:, LENGTH])
    expected = torch.from_numpy(make_draws(at, points.tolist(), [params[slot] for slot in slots]))
    spread = torch.zeros(12, dtype=torch.int64)
    spread[at] = torch.tensor(slots)
    assert torch.equal(device_rows.make_draws(rows, spread, at), expected)
    found = row_state.make_draws(*(t.to(DEVICE) for t in (rows.state, torch.tensor(slots), torch.tensor(at))))
    assert torch.equal(found.cpu(), expected)

"""What a runner's device has of the sequences of its row table."""

from __future__ import annotations

from collections.abc import Mapping

from seesay.llm.running.device_rows import LENGTH, OFFSET, OPTIONS, TOKEN
from seesay.llm.running.runner import ModelRunner

State = Mapping[int, tuple[list[int], list[int]]]
"""By sequence id, the blocks of a sequence and the other numbers."""


def read_state(runner: ModelRunner) -> State:
    """The device's part of the row table, after a step was sampled. It must agree with the host's."""
    device, state = runner.device_rows, dict[int, tuple[list[int], list[int]]]()
    for row in runner.rows:
        if device.lengths[row.slot] < 0:  # it was begun and not computed yet
            continue
        numbers = device.state[row.slot].tolist()
        blocks = device.block_table[row.slot, : len(row.block_ids)].tolist()
        assert tuple(blocks) == row.block_ids and numbers[LENGTH] == device.lengths[row.slot], row.seq_id
        assert numbers[OFFSET] == row.next_position - row.num_prompt_tokens, row.seq_id
        is_sampled = device.token_places[row.slot] == numbers[LENGTH]
        state[row.seq_id] = blocks, numbers[(TOKEN if is_sampled else LENGTH) : OPTIONS]
    return state

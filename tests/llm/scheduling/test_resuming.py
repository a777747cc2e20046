"""Where sequences go on: behind what others computed for the same adapter, and behind what the layers keep."""

from __future__ import annotations

from collections.abc import Sequence as Values

import pytest
from llm.fake_engine import FakeEngine, make_prompt

from seesay.llm.plans.block_key import BlockKey
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.sequence import Sequence

BLOCK_SIZE = 4


def make_engine(*, is_ahead: bool = False, num_blocks: int = 64, **options: object) -> FakeEngine:
    config = SchedulerConfig(max_batch_size=6, max_prefill_token_num=16, session_len=40, num_adapter_slots=2)
    return FakeEngine(config, BlockPool(num_blocks, BLOCK_SIZE), is_ahead=is_ahead, **options)  # type: ignore[arg-type]


def make_sequence(seq_id: int, *, seed: int = 0, length: int = 14, **options: object) -> Sequence:
    params = SamplingParams(max_new_tokens=8, ignore_eos=True)
    return Sequence(seq_id, make_prompt([(length, -1)], seed), params, **options)  # type: ignore[arg-type]


# --- adapters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_ahead", [False, True])
def test_sequences_of_different_adapters_share_nothing_and_those_of_one_do(is_ahead: bool) -> None:
    """The engine compares every block that is read, and every answer, with those of the sequence alone."""
    engine = make_engine(is_ahead=is_ahead)
    sequences = [make_sequence(seq_id, adapter_id=adapter) for seq_id, adapter in enumerate((0, 1, 2, 1, 0, 2))]
    for seq in sequences:
        engine.add(seq)
    engine.drain()
    assert [seq.num_cached_tokens for seq in sequences] == [0, 0, 0, 12, 12, 12]
    answers = [tuple(seq.token_ids[14:].tolist()) for seq in sequences]
    assert answers[:3] == [answers[4], answers[3], answers[5]] and len(set(answers)) == 3


# --- what the layers keep --------------------------------------------------------------------------------------------


class Snapshots:
    """Layers with a state that was kept behind some blocks."""

    def __init__(self, numbers: set[int]) -> None:
        self.numbers = numbers
        self.asked: list[tuple[int, int]] = []

    def find_last(self, keys: Values[BlockKey], num_tokens: int) -> int:
        num_blocks = num_tokens // BLOCK_SIZE
        assert len(keys) >= num_blocks
        last = max((number for number in self.numbers if number <= num_blocks), default=0)
        self.asked.append((num_tokens, BLOCK_SIZE * last))
        return BLOCK_SIZE * last


@pytest.mark.parametrize(("kept", "start"), [({1, 2, 3}, 12), ({2, 9}, 8), ({5}, 0)])
@pytest.mark.parametrize("group_id", [None, 7], ids=["prefix cache", "group"])
def test_a_sequence_begins_where_the_layers_can_go_on(kept: set[int], start: int, group_id: int | None) -> None:
    engine = make_engine(resume_points=Snapshots(kept))
    first, second = (make_sequence(seq_id, group_id=group_id) for seq_id in (1, 2))
    engine.add(first)
    for _ in range(3):
        engine.step()
    engine.add(second)
    engine.drain()
    [begun] = [row for plan in engine.plans for row in plan.rows if row.seq_id == 2 and row.start == start][:1]
    assert begun.num_tokens > 1 and second.num_cached_tokens == start

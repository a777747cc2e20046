"""Where sequences go on: behind what others computed for the same adapter, behind what the layers keep, and back."""

from __future__ import annotations

import random
from collections.abc import Sequence as Values

import pytest
from llm.fake_engine import FakeEngine, make_prompt

from seesay.llm.plans.block_key import BlockKey
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.sequence import Sequence, SequenceStatus

BLOCK_SIZE = 4


def make_engine(*, is_ahead: bool = False, num_blocks: int = 64, **options: object) -> FakeEngine:
    config = SchedulerConfig(max_batch_size=6, max_prefill_token_num=16, session_len=40, num_adapter_slots=2)
    return FakeEngine(config, BlockPool(num_blocks, BLOCK_SIZE), is_ahead=is_ahead, **options)  # type: ignore[arg-type]


def make_sequence(seq_id: int, *, seed: int = 0, length: int = 14, picture: int = -1, **options: object) -> Sequence:
    params = SamplingParams(max_new_tokens=8, ignore_eos=True)
    return Sequence(seq_id, make_prompt([(length, picture)], seed), params, **options)  # type: ignore[arg-type]


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


# --- going back ------------------------------------------------------------------------------------------------------


def go_back(engine: FakeEngine, seq: Sequence, num_tokens: int) -> None:
    engine.scheduler.go_back(seq.seq_id, num_tokens)
    engine.collect()


def test_a_sequence_goes_back_to_any_token_of_a_block_of_its_own() -> None:
    engine, seq = make_engine(), make_sequence(1)
    engine.add(seq)
    for _ in range(2):
        engine.step()
    assert seq.num_computed == 15
    go_back(engine, seq, 13)
    assert (seq.num_computed, seq.num_registered_blocks, len(seq.block_ids)) == (13, 3, 4)
    before = len(engine.plans)
    engine.drain()
    row = engine.plans[before].rows[0]
    assert (row.start, row.num_tokens, row.samples) == (13, 3, True)


def test_it_never_writes_to_a_block_that_others_read() -> None:
    engine, seq, other = make_engine(), make_sequence(1), make_sequence(2)
    engine.add(seq)
    engine.add(other)
    for _ in range(3):
        engine.step()
    assert other.block_ids[:3] == seq.block_ids[:3]
    go_back(engine, seq, 10)
    assert seq.num_computed == 8 and seq.block_ids == other.block_ids[:2]
    engine.drain()


def test_pictures_that_are_computed_again_are_asked_for_again() -> None:
    engine, seq = make_engine(), make_sequence(1, length=6, picture=3)
    engine.add(seq)
    engine.step()
    engine.encode(0, fails=False)
    engine.step()
    assert seq.num_computed == 10 and not engine.pins
    go_back(engine, seq, 5)
    assert seq.num_computed == 4
    engine.step()
    assert engine.encoding == [seq.items[0].hash]
    engine.drain()


@pytest.mark.parametrize("seed", range(20))
def test_answers_are_the_same_whenever_sequences_go_back(seed: int) -> None:
    """Beside others that share their blocks, with preemption, steps ahead and plans that are lost."""
    rng = random.Random(seed)
    engine = make_engine(is_ahead=bool(seed % 2), num_blocks=rng.choice([12, 20, 64]))
    num_back = 0

    for number in range(60):
        if len(engine.alive) < 8:
            group_id = rng.choice([None, 1, 2])
            length, text = rng.randint(1, 20), group_id or rng.randint(0, 2)
            engine.add(make_sequence(number, seed=text, length=length, picture=rng.choice([-1, 2]), group_id=group_id))
        engine.step()
        if engine.encoding and rng.random() < 0.7:
            engine.encode(0, fails=False)
        for seq in list(engine.alive.values()):
            if seq.status is SequenceStatus.RUNNING and not seq.is_in_flight and rng.random() < 0.3:
                go_back(engine, seq, rng.randint(0, seq.num_computed))
                num_back += 1
    assert num_back > 10 or engine.is_ahead
    engine.drain()

"""What runners learn of sequences, from plan to plan."""

from __future__ import annotations

import numpy as np

from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import AddedBlocks, StepPlan
from seesay.llm.running.row_table import RowTable
from seesay.llm.scheduling.plan_deltas import PlanDeltas
from seesay.llm.scheduling.sequence import Sequence
from seesay.values import MultimodalInput


def make_sequence(seq_id: int) -> Sequence:
    prompt = MultimodalInput(token_ids=np.arange(5), positions=np.arange(5), next_position=5)
    return Sequence(seq_id, prompt, SamplingParams())


def test_blocks_are_sent_once() -> None:
    deltas, seq = PlanDeltas(), make_sequence(1)
    deltas.begin(seq)
    seq.block_ids = (4, 5)
    deltas.add_blocks(seq)
    deltas.add_blocks(seq)
    assert deltas.take().added_blocks == (AddedBlocks(1, (4, 5)),)
    deltas.add_blocks(seq)
    seq.block_ids += (9,)
    deltas.add_blocks(seq)
    assert deltas.take() == (False, (), (), (AddedBlocks(1, (9,)),))
    assert deltas.take() == (False, (), (), ())


def test_a_sequence_that_ends_begins_again_with_all_blocks() -> None:
    deltas, seq = PlanDeltas(), make_sequence(1)
    table = RowTable()
    for block_ids in ((1, 2), (3,)):
        seq.block_ids = block_ids
        deltas.begin(seq)
        deltas.add_blocks(seq)
        found = deltas.take()
        table.apply(StepPlan(ended_ids=found.ended_ids, begun=found.begun, added_blocks=found.added_blocks))
        assert table[1].block_ids == block_ids
        deltas.end(seq)
    assert deltas.take().ended_ids == (1,)


def test_runners_hear_nothing_of_one_that_ends_before_its_first_plan_is_made() -> None:
    """As when making the plan fails."""
    deltas, first, other = PlanDeltas(), make_sequence(1), make_sequence(2)
    for seq in (first, other):
        deltas.begin(seq)
        seq.block_ids = (seq.seq_id,)
        deltas.add_blocks(seq)
    deltas.end(first)
    deltas.end(first)
    is_fresh, ended, begun, added = deltas.take()
    assert (is_fresh, ended, added) == (False, (), (AddedBlocks(2, (2,)),)) and [each.seq_id for each in begun] == [2]


def test_a_fresh_plan_names_all_that_run() -> None:
    """Whatever runners were told before."""
    deltas, gone, first, other = PlanDeltas(), make_sequence(1), make_sequence(2), make_sequence(3)
    table = RowTable()
    for seq in (gone, first, other):
        seq.block_ids = (seq.seq_id,)
        deltas.begin(seq)
        deltas.add_blocks(seq)
    found = deltas.take()
    table.apply(StepPlan(ended_ids=found.ended_ids, begun=found.begun, added_blocks=found.added_blocks))
    deltas.end(gone)
    other.block_ids = (3, 7)
    deltas.renew([first, other])
    found = deltas.take()
    assert found.is_fresh and not found.ended_ids and not deltas.take().is_fresh
    table.apply(
        StepPlan(is_fresh=found.is_fresh, ended_ids=found.ended_ids, begun=found.begun, added_blocks=found.added_blocks)
    )
    assert {state.seq_id: state.block_ids for state in table} == {2: (2,), 3: (3, 7)}

"""Rows with proposed tokens, on the runner: what is accepted is what would have been sampled one by one."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from llm import backbones
from llm.backbones import VOCAB, Backbone
from llm.eager_graphs import record_eagerly
from llm.running.test_row_table import make_begun

from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import AddedBlocks, Row, StepPlan, TokenMasks
from seesay.llm.running.device_rows import DeviceRows, begin_decode
from seesay.llm.running.row_table import RowTable
from seesay.llm.running.runner import ModelRunner
from seesay.llm.scheduling.sequence import Sequence

NUM_NEW = 24
PARAMS = (
    SamplingParams(),
    SamplingParams(greedy=False, temperature=3.0, top_p=0.9, seed=5),
    SamplingParams(repetition_penalty=1.5, frequency_penalty=0.5, logprobs=2),
    SamplingParams(greedy=False, temperature=2.0, presence_penalty=1.0, seed=6, bad_token_ids=(7, 8), min_new_tokens=9),
)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    return backbones.make_backbone("qwen2", tmp_path_factory.mktemp("qwen2"))


Answers = dict[int, tuple[list[int], list[Mapping[int, float]]]]


def answer(
    backbone: Backbone, right: Answers | None = None, *, graphs: bool = False, share_right: float = 0.0
) -> tuple[Answers, int, int]:
    """Answer with each of `PARAMS`, and with drafts if the right answers are known: some rows have none, some right
    ones, some wrong ones. Returns the answers, the number of steps, and how many of them graphs computed."""
    runner = backbones.load_runner(backbone, max_verified_tokens=40)
    sizes = record_eagerly(runner) if graphs else []
    rng = random.Random(3)
    sequences = [
        Sequence(number, backbones.make_prompt(backbone, 5 + number, seed=number), params)
        for number, params in enumerate(PARAMS)
    ]
    backbones.begin(runner, {each: range(12 * each.seq_id, 12 * each.seq_id + 12) for each in sequences})
    found: Answers = {each.seq_id: ([], []) for each in sequences}
    rows = [Row(each.seq_id, 0, each.num_tokens, True) for each in sequences]
    num_steps = 0
    while rows:
        result = runner.run(StepPlan(rows=tuple(rows)), {})
        num_steps += 1
        assert not result.errors
        for row in result.rows:
            found[row.seq_id][1].extend(row.logprobs)
        rows = []
        for seq_id, token_ids in result.token_ids.items():
            found[seq_id][0].extend(token_ids)
            sequence, done = sequences[seq_id], len(found[seq_id][0])
            if done >= NUM_NEW:
                continue
            drafts: tuple[int, ...] = ()
            if right is not None and rng.random() < 0.7:
                ahead = right[seq_id][0][done : min(NUM_NEW - 1, done + rng.randint(0, 6))]
                drafts = tuple(each if rng.random() < share_right else rng.randrange(VOCAB) for each in ahead)
            start = sequence.num_prompt_tokens + done - 1
            rows.append(Row(seq_id, start, 1 + len(drafts), True, drafts))
    return found, num_steps, len(sizes)


@pytest.mark.parametrize("graphs", [False, True])
def test_answers_with_drafts_are_those_without(backbone: Backbone, graphs: bool) -> None:
    expected, most, _ = answer(backbone)
    assert most == NUM_NEW
    for share_right in (0.0, 0.8, 1.0):
        found, num_steps, num_graphs = answer(backbone, expected, graphs=graphs, share_right=share_right)
        assert num_graphs == (num_steps - 1 if graphs else 0)
        assert num_steps == most if share_right == 0 else num_steps < 0.7 * most
        for seq_id, (token_ids, logprobs) in found.items():
            assert token_ids == expected[seq_id][0], (share_right, seq_id)
            assert len(logprobs) == len(expected[seq_id][1])
            for ours, theirs in zip(logprobs, expected[seq_id][1], strict=True):
                assert ours == pytest.approx(theirs, abs=1e-4)


def begin_one(runner: ModelRunner, backbone: Backbone) -> tuple[Sequence, list[int]]:
    """A sequence with one generated token, and the next ones."""
    sequence = Sequence(0, backbones.make_prompt(backbone, 9, seed=1), SamplingParams())
    backbones.begin(runner, {sequence: range(9)})
    right = backbone.greedy(sequence.token_ids, 8)
    [token_ids] = runner.run(StepPlan(rows=(Row(0, 0, 9, True),)), {}).token_ids.values()
    assert list(token_ids) == right[:1]
    return sequence, right


def test_nothing_is_taken_behind_a_wrong_draft(backbone: Backbone) -> None:
    runner = backbones.load_runner(backbone)
    _, right = begin_one(runner, backbone)
    drafts = (right[1], right[2], (right[3] + 1) % VOCAB, right[4])
    result = runner.run(StepPlan(rows=(Row(0, 9, 5, True, drafts),)), {})
    assert result.token_ids == {0: tuple(right[1:4])}
    assert runner.rows[0].token_ids.tolist()[9:] == right[:4]
    assert runner.run(StepPlan(rows=(Row(0, 12, 1, True),)), {}).token_ids == {0: (right[4],)}


def test_masks_behind_drafts_are_used_where_they_are_reached(backbone: Backbone) -> None:
    runner = backbones.load_runner(backbone)
    _, right = begin_one(runner, backbone)
    bits = np.full((3, VOCAB // 32), -1, dtype=np.int32)
    bits[1, right[2] // 32] ^= np.int32(np.uint32(1 << right[2] % 32).view(np.int32))
    bits[2] = 0
    launched = runner.launch(StepPlan(rows=(Row(0, 9, 3, True, (right[1], right[2])),)), {})
    runner.sample(launched, TokenMasks(seq_ids=(0, 0, 0), bits=bits))
    result = runner.collect(launched)
    first, second = result.token_ids[0]
    assert first == right[1] and second != right[2]


def test_a_place_where_no_token_is_left_is_left_to_the_next_step(backbone: Backbone) -> None:
    runner = backbones.load_runner(backbone)
    _, right = begin_one(runner, backbone)
    bits = np.stack([np.full(VOCAB // 32, -1, dtype=np.int32), np.zeros(VOCAB // 32, dtype=np.int32)])
    launched = runner.launch(StepPlan(rows=(Row(0, 9, 2, True, (right[1],)),)), {})
    runner.sample(launched, TokenMasks(seq_ids=(0, 0), bits=bits))
    result = runner.collect(launched)
    assert result.token_ids == {0: (right[1],)} and not result.errors


def test_drafts_are_rows_of_their_own_with_the_blocks_of_their_sequence() -> None:
    table = RowTable()
    rows = DeviceRows(num_slots=3, max_blocks=4, scratch_block=77, device=torch.device("cpu"), num_lent=5)
    begun = tuple(make_begun(6, seq_id=seq_id) for seq_id in (1, 2))
    added = (AddedBlocks(1, (4, 5)), AddedBlocks(2, (8, 9)))
    plan = StepPlan(begun=begun, added_blocks=added)
    table.apply(plan)
    rows.take(plan, table)
    table.take_drafts(StepPlan(rows=(Row(1, 5, 3, True, (30, 31)), Row(2, 5, 1, True))))
    members = [table[1], table[2]]
    own = np.array([each.slot for each in members])
    slots = rows.lend(own, np.array([3, 1]))
    assert slots.tolist() == [own[0], 3, 4, own[1]]
    places = np.array([5, 6, 7, 5])
    rows.begin_decode(slots, places, [members[0]] * 3 + [members[1]], size=5)
    given = begin_decode(rows, rows.slots[:5], rows.block_table, block_size=4, num_axes=1)
    assert given.input_ids[:4].tolist() == [105, 30, 31, 105]
    assert given.kv_lens[:4].tolist() == [6, 7, 8, 6]
    assert given.slot_mapping[:4].tolist() == [5 * 4 + 1, 5 * 4 + 2, 5 * 4 + 3, 9 * 4 + 1]
    assert given.block_table[:4, :2].tolist() == [[4, 5]] * 3 + [[8, 9]]
    assert given.is_valid.tolist() == [True] * 4 + [False]
    assert (given.slot_mapping[4:] // 4 == 77).all()


def test_counts_that_are_copied_grow_on_their_own() -> None:
    from seesay.llm.running.token_counts import TokenCounts

    counts = TokenCounts(np.array([1, 2]))
    counts.extend(np.array([2, 3]))
    other: Any = counts.copy()
    other.extend(np.array([2, 3, 3, 9]))
    assert dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True)) == {1: 0, 2: 1, 3: 1}
    assert dict(zip(other.ids.tolist(), other.counts.tolist(), strict=True)) == {1: 0, 2: 1, 3: 2, 9: 1}
    assert (counts.num_generated, other.num_generated) == (2, 4)

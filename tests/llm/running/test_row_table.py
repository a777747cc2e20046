"""What a runner knows of sequences by plans alone."""

from __future__ import annotations

import random

import numpy as np
import pytest

from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import AddedBlocks, BegunSequence, MediaSpan, StepPlan
from seesay.llm.running.row_table import RowState, RowTable, Splice
from seesay.values import Modality


def make_span(start: int, stop: int, slots: list[int] | None = None) -> MediaSpan:
    places = np.array(range(start, stop) if slots is None else slots, dtype=np.int64)
    return MediaSpan(modality=Modality.IMAGE, span=(start, stop), slots=places, hash=bytes(32))


def make_begun(
    num_tokens: int = 10,
    *items: MediaSpan,
    seq_id: int = 1,
    rotary: int = 1,
    params: SamplingParams | None = None,
    seed: int = 0,
) -> BegunSequence:
    positions = np.arange(num_tokens)
    if rotary == 3:
        positions = np.stack([positions, positions * 2, positions * 3])
    return BegunSequence(
        seq_id=seq_id,
        token_ids=np.arange(100, 100 + num_tokens),
        num_prompt_tokens=num_tokens,
        positions=positions,
        next_position=50,
        params=params or SamplingParams(max_new_tokens=2),
        seed=seed,
        items=items,
    )


@pytest.mark.parametrize("rotary", [1, 3])
def test_positions_go_on_after_the_prompt(rotary: int) -> None:
    row = RowState(make_begun(4, rotary=rotary))
    first = row.positions(0, 7)
    assert first.shape == ((7,) if rotary == 1 else (3, 7))
    assert first[..., 4:].reshape(-1).tolist() == [50, 51, 52] * rotary
    for start in range(7):
        for stop in range(start, 8):
            assert np.array_equal(row.positions(start, stop), first[..., start:stop])
            assert row.positions(start, stop).dtype == np.int64


def test_splices_cut_items_at_the_row() -> None:
    row = RowState(make_begun(20, make_span(2, 8, [3, 4, 6]), make_span(8, 10), make_span(15, 18)))
    assert row.splices(0, 20) == [Splice(0, 0, 3), Splice(1, 0, 2), Splice(2, 0, 3)]
    assert row.splices(4, 9) == [Splice(0, 1, 3), Splice(1, 0, 1)]
    assert row.splices(5, 6) == []
    assert row.splices(18, 20) == []
    assert row.media_end == 18
    assert RowState(make_begun()).splices(0, 10) == []


def test_tokens_are_recorded_where_they_belong() -> None:
    row = RowState(make_begun(3))
    early = row.token_ids
    for position in range(3, 1003):
        row.record(position, (position,))
    assert row.num_known == 1003 and row.token_ids[:5].tolist() == [100, 101, 102, 3, 4]
    assert early.tolist() == [100, 101, 102]
    row.record(500, (500, 501))
    assert row.num_known == 502 and row.token_ids[-1] == 501, "a step that is computed again brings the last tokens"
    with pytest.raises(AssertionError):
        row.record(504, (1,))


def test_deltas_come_and_go() -> None:
    table = RowTable()
    first, second = make_begun(seq_id=1), make_begun(seq_id=2)
    table.apply(StepPlan(begun=(first, second), added_blocks=(AddedBlocks(1, (4, 5)), AddedBlocks(2, (7,)))))
    before = table[1].block_ids
    table.apply(StepPlan(added_blocks=(AddedBlocks(1, (9,)),)))
    assert (table[1].block_ids, before, table[2].block_ids) == ((4, 5, 9), (4, 5), (7,))
    again = StepPlan(ended_ids=(1, 2), begun=(make_begun(5, seq_id=1),), added_blocks=(AddedBlocks(1, (3,)),))
    table.apply(again)
    assert [row.seq_id for row in table] == [1] and table[1].block_ids == (3,) and table[1].num_known == 5
    with pytest.raises(KeyError):
        table.apply(StepPlan(ended_ids=(2,)))
    with pytest.raises(AssertionError):
        table.apply(StepPlan(begun=(make_begun(seq_id=1),)))


def test_slots_are_used_again_and_never_more_than_there_are_sequences() -> None:
    table, live, rng = RowTable(), list[int](), random.Random(0)
    for seq_id in range(300):
        ended = rng.sample(live, rng.randint(0, len(live))) if len(live) == 9 or rng.random() < 0.3 else []
        table.apply(StepPlan(ended_ids=tuple(ended), begun=(make_begun(seq_id=seq_id),)))
        live = [*(other for other in live if other not in ended), seq_id][-9:]
        table.apply(StepPlan(ended_ids=tuple(row.seq_id for row in table if row.seq_id not in live)))
        slots = {row.slot for row in table}
        assert len(slots) == len(table) == len(live) and slots <= set(range(10))

"""Which embedding rows go into the rows of a plan, and whose do not fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from llm.running.test_row_table import make_begun, make_span

from seesay.errors import ErrorCode
from seesay.llm.plans.step_plan import BegunSequence, MediaSpan, Row, StepPlan
from seesay.llm.running.row_table import RowTable
from seesay.llm.running.splices import PlanSplices, find_splices

SIZE = 6


def make_plan(*begun: BegunSequence, start: int = 0, stop: int = 10) -> tuple[StepPlan, RowTable]:
    table = RowTable()
    plan = StepPlan(rows=tuple(Row(each.seq_id, start, stop - start, False) for each in begun), begun=begun)
    table.apply(plan)
    return plan, table


def make_picture(number: int, start: int, stop: int) -> MediaSpan:
    return replace(make_span(start, stop), hash=bytes([number]) * 32)


def embed(number: int, num_rows: int, size: int = SIZE) -> dict[bytes, torch.Tensor]:
    rows = torch.arange(num_rows * size, dtype=torch.float32).reshape(num_rows, size)
    return {bytes([number]) * 32: rows + 1000 * number}


def find(plan: StepPlan, table: RowTable, embeddings: dict[bytes, torch.Tensor]) -> PlanSplices:
    return find_splices(plan, table, embeddings, embedding_size=SIZE)


@pytest.mark.parametrize("shape", [(2, SIZE), (4, SIZE), (3, SIZE - 1), (3, SIZE + 1), (SIZE, 3)])
def test_an_embedding_of_the_wrong_size_fails_its_own_sequence_alone(shape: tuple[int, int]) -> None:
    plan, table = make_plan(
        make_begun(10, make_picture(1, 2, 5), seq_id=1),
        make_begun(10, make_picture(2, 2, 5), seq_id=2),
        make_begun(10, seq_id=3),
    )
    splices, errors = find(plan, table, embed(1, *shape) | embed(2, 3))
    assert list(errors) == [1] and errors[1].code is ErrorCode.INTERNAL
    assert str(errors[1]).startswith(
        f"the embedding of image 0 has shape {list(shape)}; its place in the prompt takes [3, {SIZE}]"
    )
    assert list(splices) == [2] and splices[2].pieces[0].shape == (3, SIZE)


def test_an_embedding_that_is_missing_fails_its_own_sequence_alone() -> None:
    plan, table = make_plan(
        make_begun(10, make_picture(1, 2, 5), make_picture(2, 6, 9), seq_id=1),
        make_begun(10, make_picture(1, 2, 5), seq_id=2),
    )
    splices, errors = find(plan, table, embed(1, 3))
    assert list(errors) == [1] and "the embedding of image 1 is missing" in str(errors[1])
    assert list(splices) == [2]


def test_rows_are_cut_and_placed_by_offset() -> None:
    pictures = make_picture(1, 2, 5), make_picture(2, 6, 9)
    plan, table = make_plan(make_begun(10, *pictures), start=3, stop=7)
    splices, errors = find(plan, table, embed(1, 3) | embed(2, 3))
    found = splices[1]
    assert not errors and [offsets.tolist() for offsets in found.offsets] == [[0, 1], [3]]
    assert found.pieces[0].equal(embed(1, 3)[bytes([1]) * 32][1:]) and found.are_ends == [True, False]
    assert found.pieces[1].equal(embed(2, 3)[bytes([2]) * 32][:1])
    assert all(np.issubdtype(offsets.dtype, np.int64) for offsets in found.offsets)


def test_nothing_is_looked_up_behind_the_media_of_a_sequence() -> None:
    for start, expected in ((4, [1]), (5, [])):
        plan, table = make_plan(make_begun(10, make_picture(1, 2, 5)), start=start)
        splices, errors = find(plan, table, embed(1, 3))
        assert (list(splices), dict(errors)) == (expected, {})


def test_a_row_between_two_pictures_has_no_splices_although_it_is_before_the_end_of_media() -> None:
    plan, table = make_plan(make_begun(10, make_picture(1, 0, 2), make_picture(2, 8, 9)), start=2, stop=8)
    splices, errors = find(plan, table, {})
    assert not errors and splices[1].pieces == [] and splices[1].offsets == []

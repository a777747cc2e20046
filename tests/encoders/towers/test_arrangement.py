from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from triton_cases import DEVICE

from seesay.encoders.towers.arrangement import LearnedRows, arrange_rows


def make_learned(*names: str) -> LearnedRows:
    learned = LearnedRows(names, 4)
    for number, name in enumerate(names):
        torch.nn.init.constant_(learned.get_parameter(name), -1.0 - number)
    return learned.to(DEVICE)


def make_rows(count: int) -> torch.Tensor:
    return torch.arange(count, device=DEVICE).float()[:, None].expand(-1, 4) * 10


def first_column(rows: torch.Tensor) -> list[float]:
    assert rows.shape[1] == 4 and (rows == rows[:, :1]).all()
    return [round(value, 4) for value in rows[:, 0].tolist()]


def numbers(*values: Any) -> Any:
    return np.array(values, dtype=np.int32)


def test_rows_are_dropped_and_ordered_with_learned_ones_between() -> None:
    learned = make_learned("newline", "separator")
    features: list[dict[str, Any]] = [{"rows": numbers(3, 0, -2, 1, -1)}, {}, {"rows": numbers(0, 2, 2)}]
    rows = [make_rows(4), make_rows(2), make_rows(1)]
    found = [first_column(part) for part in arrange_rows(rows, learned, features)]
    assert found == [[30, 0, -1, 10, -2], [0, 10], [0, -2, -2]]


def test_rows_are_blended() -> None:
    weights = np.array([[0.5, 0.5], [1, 0], [0.25, 0.75]], dtype=np.float32)
    features = [{"rows": numbers([0, 1], [-1, 0], [2, -1]), "row_weights": weights}, {"rows": numbers(1)}]
    found = arrange_rows([make_rows(3), make_rows(2)], make_learned("newline"), features)
    assert [first_column(part) for part in found] == [[5, -1, 4.25], [10]]
    assert arrange_rows([make_rows(3).bfloat16()], make_learned("newline"), features[:1])[0].dtype is torch.bfloat16


def test_an_arrangement_owns_its_memory() -> None:
    """The worker keeps it for long: it must not hold the rows of a whole batch."""
    batch = make_rows(8)
    [found] = arrange_rows([batch[:4]], make_learned(), [{"rows": numbers(0, 1)}])
    assert found.untyped_storage().nbytes() == found.nbytes


@pytest.mark.parametrize("number", (5, -6))
def test_a_number_beyond_the_rows_is_a_mistake(number: int) -> None:
    with pytest.raises(AssertionError, match="an arrangement of 5 rows"):
        arrange_rows([make_rows(4)], make_learned("newline"), [{"rows": numbers(0, number)}])

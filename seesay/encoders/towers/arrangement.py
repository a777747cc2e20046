"""Arranges the rows that a tower made of an item: drops, orders and blends them, puts learned rows between them.

A family gives the arrangement as numbers, so that tiles, newlines, unpadding and separators need no code here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from seesay.device.transfers import upload

if TYPE_CHECKING:
    import numpy.typing as npt


class StackedRows(Protocol):
    """Rows that stand between those of pictures."""

    def stack(self) -> Tensor:
        """Return all of them: [rows, size]."""
        ...


class LearnedRows(nn.Module):
    """Rows [size] of a checkpoint that stand between those of pictures, such as a newline, by name.

    axes: the number of axes of each in the checkpoint, all but the last of length 1; one by default. project: computes
    the rows that stand there from those of the checkpoint.
    """

    def __init__(
        self,
        names: Sequence[str],
        size: int,
        *,
        axes: Sequence[int] = (),
        project: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self._size = size
        self._project = project
        for name, count in zip(names, axes or (1,) * len(names), strict=True):
            self.register_parameter(name, nn.Parameter(torch.empty((*(1,) * (count - 1), size))))

    def stack(self) -> Tensor:
        """Return all rows [names, size], in the order of their names."""
        rows = [row.flatten() for row in self.parameters()]
        stacked = torch.stack(rows) if rows else torch.empty(0, self._size)
        return stacked if self._project is None else self._project(stacked)


def arrange_rows(rows: Sequence[Tensor], learned: StackedRows, features: Sequence[Mapping[str, Any]]) -> list[Tensor]:
    """Return the arranged rows [S, size] of each item. `rows[i]` are the tower's [T, size] of item i; they are returned
    as they are if the item has no arrangement.

    Feature `rows` int32 [S]: row number `rows[s]` of the tower's rows followed by the learned ones comes at place s of
    the item. Negative numbers count from the end, as in Python: -1 is the last learned row. `rows` int32 [S, K] with
    `row_weights` float32 [S, K]: at place s comes the sum of K rows, each times its weight.
    """
    arranged = [index for index, item in enumerate(features) if "rows" in item]
    if not arranged:
        return list(rows)
    between = learned.stack().to(rows[0])
    tables = [torch.cat((rows[index], between)) for index in arranged]
    arrays = [_number_from_start(features[index]["rows"], len(table)) for index, table in zip(arranged, tables)]
    weighted = [index for index in arranged if "row_weights" in features[index]]
    uploaded = upload([*arrays, *(features[index]["row_weights"] for index in weighted)], between.device)
    weights = dict(zip(weighted, uploaded[len(arrays) :], strict=True))
    result = list(rows)
    for index, table, numbers in zip(arranged, tables, uploaded):
        result[index] = _take_rows(table, numbers, weights.get(index))
    return result


def _number_from_start(numbers: npt.NDArray[np.int32], count: int) -> npt.NDArray[np.int32]:
    assert -count <= numbers.min() and numbers.max() < count, f"an arrangement of {count} rows"
    return numbers % np.int32(count)


def _take_rows(table: Tensor, numbers: Tensor, weights: Tensor | None) -> Tensor:
    """Return [S, size], the rows `numbers` [S], or the sums of the rows `numbers` [S, K] times `weights` [S, K], added
    up in float32."""
    if weights is None:
        return table.index_select(0, numbers)
    total = torch.zeros(len(numbers), table.shape[1], dtype=torch.float32, device=table.device)
    for column in range(numbers.shape[1]):
        total.addcmul_(table.index_select(0, numbers[:, column]).float(), weights[:, column, None])
    return total.to(table.dtype)

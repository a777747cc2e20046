"""Arranges the rows that a tower made of an item: drops some, orders them, and puts learned rows between them.

A family gives the arrangement as numbers, so that tiles, newlines, unpadding and separators need no code here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seesay.device.transfers import upload


class LearnedRows(nn.Module):
    """Rows [size] of a checkpoint that stand between those of pictures, such as a newline, by name."""

    def __init__(self, names: Sequence[str], size: int) -> None:
        super().__init__()
        self._size = size
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.empty(size)))

    def stack(self) -> Tensor:
        """Return all rows [names, size], in the order of their names."""
        rows = list(self.parameters())
        return torch.stack(rows) if rows else torch.empty(0, self._size)


def arrange_rows(rows: Sequence[Tensor], learned: LearnedRows, features: Sequence[Mapping[str, Any]]) -> list[Tensor]:
    """Return the arranged rows [S, size] of each item. `rows[i]` are the tower's [T, size] of item i; they are returned
    as they are if the item has no arrangement.

    Feature `rows` int32 [S]: row number `rows[s]` of the tower's rows followed by the learned ones comes at place s of
    the item. Negative numbers count from the end, as in Python: -1 is the last learned row.
    """
    arranged = [index for index, item in enumerate(features) if "rows" in item]
    if not arranged:
        return list(rows)
    between = learned.stack().to(rows[0])
    numbers = []
    for index in arranged:
        given, count = features[index]["rows"], len(rows[index]) + len(between)
        assert -count <= given.min() and given.max() < count, f"an arrangement of {count} rows"
        numbers.append(given % count)
    result = list(rows)
    for index, wanted in zip(arranged, upload(numbers, between.device), strict=True):
        result[index] = torch.cat((rows[index], between)).index_select(0, wanted)
    return result

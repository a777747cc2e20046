"""Finds the row that makes a step fail: the rows of a failed step are tried in halves, until one fails alone."""

from __future__ import annotations

from collections.abc import Sequence


class Suspects:
    """The groups of sequences that are still to be tried, each in a step without others. Empty where no step failed."""

    def __init__(self) -> None:
        self._groups: list[tuple[int, ...]] = []

    @property
    def group(self) -> frozenset[int] | None:
        """The sequences of the next step; None: any."""
        return frozenset(self._groups[-1]) if self._groups else None

    def pass_group(self) -> None:
        """The step of the group went well, or none of its sequences can be computed now."""
        if self._groups:
            self._groups.pop()

    def split(self, seq_ids: Sequence[int]) -> None:
        """A step of these sequences failed: try its halves. A step of one sequence is tried again."""
        self.pass_group()
        half = len(seq_ids) // 2
        self._groups += [group for group in (tuple(seq_ids[half:]), tuple(seq_ids[:half])) if group]

    def clear(self) -> None:
        """Try no more groups."""
        self._groups.clear()

"""Sources of proposed tokens for tests of speculation: they know the tokens, and need no model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from seesay.llm.scheduling.sequence import Sequence


class Draft:
    """Proposes the same for each sequence."""

    states: Any = None
    rounds: Any = None

    def propose(self, seqs: list[Sequence], most: int) -> dict[int, tuple[int, ...]]:
        return {seq.seq_id: (1, 2, 3)[:most] for seq in seqs}


class LayerOf(Draft):
    """A `Draft` with states, and rounds that propose 9. done: what was done."""

    def __init__(self, *, has_rounds: bool = True) -> None:
        self.done: list[Any] = []
        self.states = SimpleNamespace(
            begin=lambda seq_id: self.done.append(f"begin {seq_id}"),
            drop=lambda seq_id: self.done.append(f"drop states {seq_id}"),
            clear=lambda: self.done.append("clear states"),
        )
        rounds = SimpleNamespace(
            propose=lambda seqs: {seq.seq_id: (9,) for seq in seqs}, forget=lambda: self.done.append("forget")
        )
        self.rounds = rounds if has_rounds else None

    def drop(self, seq_id: int) -> None:
        self.done.append(f"drop {seq_id}")


class TextRoundsOf:
    """Proposes 9 for all rows, in rounds, unless `has_room` is false."""

    def __init__(self) -> None:
        self.has_room, self.texts = True, dict[int, Any]()
        self.noted: list[Any] = []

    def propose(self, sequences: list[Sequence], texts: dict[int, Any]) -> dict[int, tuple[int, ...]]:
        self.texts = texts
        return {seq.seq_id: (9,) for seq in sequences} if self.has_room else {}

    def drop(self, seq_id: int) -> None:
        self.noted.append(seq_id)

    def forget(self) -> None:
        self.noted.append("forget")

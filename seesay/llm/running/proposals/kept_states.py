"""Hidden states of sequences, for what predicts further tokens of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from seesay.llm.running.step_input import StepRows


class _Piece(NamedTuple):
    """The hidden states [n, hidden] of n positions from `start` on."""

    start: int
    states: torch.Tensor


class KeptStates:
    """The hidden states of the sequences that were begun, by position, until they are taken. Of more than `max_bytes`
    all are dropped. Used by the engine loop's thread.

    make: returns what is kept of the tokens of a step [T, size], when the decoder has given their hidden states behind
    the last norm [T, hidden]; it may be part of a CUDA graph.
    """

    def __init__(self, max_bytes: int, make: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        self._max_bytes = max_bytes
        self.make = make or _keep_hidden
        self._num_bytes = 0
        self._pieces: dict[int, list[_Piece]] = {}

    def begin(self, seq_id: int) -> None:
        """Keep the states of a sequence."""
        self._pieces[seq_id] = []

    def drop(self, seq_id: int) -> None:
        """A sequence has ended."""
        self._num_bytes -= sum(piece.states.nbytes for piece in self._pieces.pop(seq_id, ()))

    def clear(self) -> None:
        """Keep nothing of any sequence."""
        self._num_bytes = 0
        self._pieces.clear()

    def keep(self, step: StepRows, made: torch.Tensor) -> None:
        """Take the states [T, size] of all tokens of a step, in the order of its rows."""
        first = 0
        for row in step.rows:
            self.add(row.seq_id, row.start, made[first : first + row.num_tokens])
            first += row.num_tokens
        if self._num_bytes > self._max_bytes:
            self._num_bytes = 0
            self._pieces = {seq_id: [] for seq_id in self._pieces}

    def add(self, seq_id: int, start: int, states: torch.Tensor) -> None:
        """Take the states [n, size] of a sequence, if it was begun, from position `start` on."""
        if (pieces := self._pieces.get(seq_id)) is not None:
            pieces.append(_Piece(start, states))
            self._num_bytes += states.nbytes

    def take(self, seq_id: int, start: int, stop: int) -> torch.Tensor | None:
        """Return the states [stop - start, hidden] of these positions, zeros for those that were not kept; None where
        none was. Those before `stop` are then forgotten. A position that was computed twice has its last one."""
        pieces = self._pieces.get(seq_id, [])
        found = _find(pieces, start, stop)
        left = [piece for piece in pieces if piece.start + len(piece.states) > stop]
        if seq_id in self._pieces:
            self._num_bytes -= sum(piece.states.nbytes for piece in pieces) - sum(one.states.nbytes for one in left)
            self._pieces[seq_id] = left
        return found


def _find(pieces: Sequence[_Piece], start: int, stop: int) -> torch.Tensor | None:
    """See `KeptStates.take`. What one piece has is not copied."""
    found = None
    for piece in pieces:
        first, end = max(start, piece.start), min(stop, piece.start + len(piece.states))
        if first < end:
            own = piece.states[first - piece.start : end - piece.start]
            if end - first == stop - start:
                found = own
                continue
            whole = own.new_zeros(stop - start, own.shape[1]) if found is None else found.clone()
            whole[first - start : end - start] = own
            found = whole
    return found


def _keep_hidden(hidden: torch.Tensor) -> torch.Tensor:
    return hidden

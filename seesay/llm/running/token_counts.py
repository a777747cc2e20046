"""Counts the tokens of a growing sequence, for the penalties of the next token."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class TokenCounts:
    """The different tokens of one sequence, each with the number of times it was generated. Grows with the sequence, at
    a cost that depends on the new tokens alone."""

    def __init__(self, prompt: npt.NDArray[np.int64]) -> None:
        """`prompt`: the tokens that are there with a count of 0."""
        known = np.unique(prompt)
        self._places = {token_id: place for place, token_id in enumerate(known.tolist())}
        self._ids = np.zeros(len(known) + 64, dtype=np.int32)
        self._ids[: len(known)] = known
        self._counts = np.zeros_like(self._ids)
        self.num_generated = 0

    def copy(self) -> TokenCounts:
        """Return counts that grow on their own."""
        other = TokenCounts.__new__(TokenCounts)
        other._places, other._ids, other._counts = dict(self._places), self._ids.copy(), self._counts.copy()
        other.num_generated = self.num_generated
        return other

    @property
    def ids(self) -> npt.NDArray[np.int32]:
        """int32 [D], in the order in which they came. A view, as `counts` is: both change with the next `extend`."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> npt.NDArray[np.int32]:
        return self._counts[: len(self._places)]

    def extend(self, generated: npt.NDArray[np.int64]) -> None:
        """Count those of all generated tokens that are new since the last call."""
        for token_id in generated[self.num_generated :].tolist():
            place = self._places.setdefault(token_id, len(self._places))
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[place] = token_id
            self._counts[place] += 1
        self.num_generated = len(generated)

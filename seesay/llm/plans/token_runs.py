"""The runs of neighbouring tokens that see each other: those of a picture (Gemma 3), or the whole prompt (prefix-LM
attention, arXiv 1910.10683, section 3.2.1); how far each token sees, and where a step may end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import numpy as np
import numpy.typing as npt


class TokenRuns:
    """Runs of neighbouring places of a sequence: ascending, none empty. A run is computed in one step, as its first
    token sees its last one; a step may begin inside of one whose beginning is computed.

    bounds: int64 [2, R], the first place of each run and the one after its last. stop: no run reaches beyond it.
    """

    def __init__(self, bounds: npt.NDArray[np.int64]) -> None:
        self.bounds = bounds
        self._starts, self._stops = bounds
        self.stop = int(self._stops[-1]) if len(self._stops) else 0

    @classmethod
    def of_media(cls, slots: Iterable[npt.NDArray[np.int64]]) -> Self:
        """Return the runs of the places that take embeddings: `slots` are those of each item, ascending. The runs of
        two items are never one."""
        runs = [run for each in slots if len(each) for run in np.split(each, np.flatnonzero(np.diff(each) > 1) + 1)]
        bounds = [[run[0] for run in runs], [run[-1] + 1 for run in runs]]
        return cls(np.array(bounds, dtype=np.int64).reshape(2, -1))

    @classmethod
    def of_prompt(cls, num_tokens: int) -> Self:
        """Return the one run of a prompt of so many tokens."""
        return cls(np.array([[0], [num_tokens]], dtype=np.int64))

    def find(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the first and the last place of the run of each of the tokens `start` … `stop` - 1, int64
        [2, stop - start]; its own place for a token outside of all runs."""
        places = np.arange(start, stop, dtype=np.int64)
        if start >= self.stop:
            return np.stack((places, places))
        index = np.maximum(np.searchsorted(self._starts, places, side="right") - 1, 0)
        is_inside = (places >= self._starts[index]) & (places < self._stops[index])
        return np.where(is_inside, np.stack((self._starts[index], self._stops[index] - 1)), places)

    def fit(self, start: int, num_tokens: int) -> int:
        """Return how many tokens from `start` on a step may have instead of `num_tokens`: fewer, up to the run that it
        would cut; or more, to the end of the run that it begins with."""
        if num_tokens <= 0:
            return num_tokens
        stop = start + num_tokens
        index = int(np.searchsorted(self._starts, stop)) - 1
        if index < 0 or stop >= self._stops[index]:
            return num_tokens
        edge = self._starts[index] if self._starts[index] > start else self._stops[index]
        return int(edge) - start

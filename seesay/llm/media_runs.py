"""The runs of neighbouring tokens that take embeddings, for models in which the tokens of a picture see each other: how
far each token sees, and where a step may end."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


class MediaRuns:
    """Runs of neighbouring places in a prompt: ascending, none empty. A run is computed in one step, as its first token
    sees its last one; a step may begin inside of one whose beginning is computed."""

    def __init__(self, slots: Iterable[npt.NDArray[np.int64]]) -> None:
        """`slots` are the places of each item that take embeddings, ascending. The runs of two items are never one."""
        runs = [run for each in slots if len(each) for run in np.split(each, np.flatnonzero(np.diff(each) > 1) + 1)]
        self._starts = np.array([run[0] for run in runs], dtype=np.int64)
        self._stops = np.array([run[-1] + 1 for run in runs], dtype=np.int64)

    def find_reaches(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the last place that each of the tokens `start` … `stop` - 1 sees: its own, or the last one of its run.
        int64 [stop - start]."""
        places = np.arange(start, stop, dtype=np.int64)
        if not len(self._starts):
            return places
        last = self._stops[np.maximum(np.searchsorted(self._starts, places, side="right") - 1, 0)] - 1
        is_inside = places >= self._starts[0]
        return np.where(is_inside, np.maximum(places, last), places)

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

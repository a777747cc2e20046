"""Sequences of n tokens that repeat: how often the last one occurred, and what would complete one a second time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


def find_followers(token_ids: Ids, size: int) -> Ids:
    """Return the tokens that would complete an n-gram of `size` tokens that `token_ids` has already, some perhaps more
    than once: those behind each earlier occurrence of the last `size` - 1 tokens."""
    if len(token_ids) < size:
        return token_ids[:0]
    if size == 1:
        return token_ids
    starts = _find(token_ids[:-1], token_ids[len(token_ids) - size + 1 :])
    return token_ids[starts + size - 1]


def count_last(token_ids: Ids, size: int) -> int:
    """Return how often the last `size` tokens occur in `token_ids`, this time included; 0 for fewer tokens."""
    if len(token_ids) < size:
        return 0
    return len(_find(token_ids, token_ids[len(token_ids) - size :]))


def _find(token_ids: Ids, wanted: Ids) -> Ids:
    """Return where `wanted` begins in `token_ids`; occurrences may overlap."""
    num_wanted = len(wanted)
    starts = np.flatnonzero(token_ids[num_wanted - 1 :] == wanted[-1])
    for index in range(num_wanted - 2, -1, -1):
        if not len(starts):
            break
        starts = starts[token_ids[starts + index] == wanted[index]]
    return starts

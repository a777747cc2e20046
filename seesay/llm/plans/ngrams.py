"""Sequences of n tokens that repeat: how often the last one occurred, and what would complete one a second time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


def find_followers(token_ids: Ids, size: int, *, window: int = 0) -> Ids:
    """Return the tokens that would complete an n-gram of `size` tokens that the last `window` (0: all) of `token_ids`
    have already, some perhaps more than once: those behind each earlier occurrence of the last `size` - 1 tokens."""
    token_ids = token_ids[-window:] if window else token_ids
    if len(token_ids) < size:
        return token_ids[:0]
    if size == 1:
        return token_ids
    starts = _find(token_ids[:-1], token_ids[len(token_ids) - size + 1 :])
    return token_ids[starts + size - 1]


def find_late_followers(token_ids: Ids, size: int, *, window: int = 0) -> tuple[Ids, Ids]:
    """Return what `find_followers` returns for `token_ids` and one more token, which is not known yet: pairs of it and
    of a token that completes an n-gram then. `size` is at least 2, `window` counts the late token."""
    assert size >= 2
    token_ids = token_ids[1 - window or len(token_ids) :] if window else token_ids
    if len(token_ids) < size - 1:
        return token_ids[:0], token_ids[:0]
    known = token_ids[len(token_ids) - size + 2 :]
    starts = _find(token_ids[:-1], known) if len(known) else np.arange(len(token_ids))
    late = token_ids[starts + size - 2]
    # Behind the last of them is the late token itself, which is the one that it has to be.
    followers = np.append(token_ids, token_ids[-1:])[starts + size - 1]
    return late, followers


def count_last(token_ids: Ids, size: int, *, window: int = 0) -> int:
    """Return how often the last `size` tokens occur in the last `window` (0: all) of `token_ids`, this time included; 0
    for fewer tokens."""
    token_ids = token_ids[-window:] if window else token_ids
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

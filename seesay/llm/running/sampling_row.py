"""A row of a step as the sampler sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seesay.llm.plans.ngrams import find_followers, find_late_followers
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.running.token_counts import TokenCounts

LogitsProcessor = Callable[[Any, Any], Any]
"""f(token_ids [T], logits [V]) -> logits [V]: a request's own change of its logits."""


class MaskedRows(NamedTuple):
    """Rows that ask for the most likely of the tokens that a mask allows, or for a draw of these, and for no more.

    at: by index of their logits, in the order of the masks. bits: int32 [len(at), ceil(V / 32) or more] (see
    `TokenMasks`); in use until the choices are collected. find(i): return row i of these as a `SamplingRow`, to explain
    why nothing is left.
    """

    at: Sequence[int]
    bits: npt.NDArray[np.int32]
    find: Callable[[int], SamplingRow]


class SamplingRow(NamedTuple):
    """The sampler's input for a row that needs more than the most likely token.

    seed: of its draws, 64 bits. token_ids: int64 [T], prompt and generated. num_generated: generated tokens, the
        pending one too.
    pending: where the ids of the step before have the row's last token, when the host does not know it yet and
        `token_ids` lacks it; else -1.
    counts: of its tokens so far, where it has penalties; may lag behind, and is brought up to date.
    mask: int32 [ceil(V / 32) or more], one bit per token, 1 where it is allowed (see `TokenMasks`); None allows all.
    processors: called in order, when all else is done to the logits.
    """

    seed: int
    params: SamplingParams
    token_ids: npt.NDArray[np.int64]
    num_generated: int
    pending: int = -1
    counts: TokenCounts | None = None
    mask: npt.NDArray[np.int32] | None = None
    processors: tuple[LogitsProcessor, ...] = ()

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + (self.pending >= 0)

    @property
    def generated_ids(self) -> npt.NDArray[np.int64]:
        """The generated tokens that the host knows."""
        num_known = self.num_generated - (self.pending >= 0)
        return self.token_ids[len(self.token_ids) - num_known :]

    @property
    def bans_repeats(self) -> bool:
        """Whether n-grams must not come twice, and no mask says so."""
        return bool(self.params.no_repeat_ngram_size) and self.mask is None

    def find_repeats(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return (the token that must be the pending one, or -1; a token that then completes an n-gram which was there
        before), int64 [P] each."""
        params, token_ids = self.params, self.token_ids
        size, window = params.no_repeat_ngram_size, params.ngram_window
        if self.pending >= 0:
            needed, followers = find_late_followers(token_ids, size, window=window)
        else:
            followers = find_followers(token_ids, size, window=window)
            needed = np.full(len(followers), -1, dtype=np.int64)
        if params.whitelist_token_ids and len(followers):
            is_kept = np.isin(followers, params.whitelist_token_ids, invert=True)
            needed, followers = needed[is_kept], followers[is_kept]
        return needed, followers

    @property
    def is_adjusted(self) -> bool:
        """Whether single logits are changed before this token is chosen."""
        params = self.params
        is_held_back = self.num_generated < params.min_new_tokens and bool(params.ending_token_ids)
        return self.is_restricted or params.changes_logits or is_held_back

    @property
    def is_restricted(self) -> bool:
        """Whether the host says, for this token alone, what may come."""
        return self.mask is not None or bool(self.processors)

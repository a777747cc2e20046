"""Decides whether a generated token ends its sequence. Knows token ids and lengths; stop words are found in text."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from seesay.llm.plans.ngrams import count_last

if TYPE_CHECKING:
    from seesay.llm.scheduling.sequence import Sequence
    from seesay.values import FinishReason


REPEATED = -1
"""Stands for the token that ended a sequence whose last n-gram came too often."""


class Stop(NamedTuple):
    """Why a sequence ends; `token_id` is the token that ended it, or `REPEATED`."""

    reason: FinishReason
    token_id: int | None = None


def check_stop(seq: Sequence, last: int, session_len: int) -> Stop | None:
    """Whether `last`, the sequence's last generated token, ends it: a stop token after `min_new_tokens` others, an
    n-gram that came too often, or a length."""
    params = seq.params
    num_generated = seq.num_tokens - seq.num_prompt_tokens
    if num_generated > params.min_new_tokens:
        is_eos = not params.ignore_eos and last in params.eos_token_ids
        if is_eos or last in params.stop_token_ids:
            return Stop("stop", last)
        if params.repetition_ngram_size and params.repetition_ngram_threshold:
            count = count_last(seq.generated_ids, params.repetition_ngram_size, window=params.ngram_window)
            if count >= params.repetition_ngram_threshold:
                return Stop("stop", REPEATED)
    if num_generated >= params.max_new_tokens or seq.num_tokens >= session_len:
        return Stop("length")
    return None

"""The mask of a row takes away what its options ban, so that the sampler only has to look at the mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from seesay.engine.core.grammars.row_matcher import RowMatcher
from seesay.errors import RequestError
from seesay.llm.plans.sampling_params import SamplingParams

VOCAB = 77
END = 5


class _Allows:
    """A rule that allows some tokens."""

    is_over, forced = False, ()

    def __init__(self, *token_ids: int) -> None:
        self._token_ids = token_ids

    def follow(self, generated_ids: Any) -> Any:
        return None

    def finish(self, words: np.ndarray) -> bool:
        words[:] = 0
        for token_id in self._token_ids:
            words.view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)
        return True


def read_mask(rule: Any, num_generated: int, **options: Any) -> list[int]:
    params = SamplingParams(eos_token_ids=(END,), **options)
    matcher = RowMatcher(
        rule=rule, words=None, params=params, has_grammar=True, prompt_ids=np.arange(3), vocab_size=VOCAB
    )
    generated, words = np.arange(num_generated), np.empty(4, np.int32)
    matcher.follow(generated)
    assert matcher.finish(words)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:VOCAB]
    return np.flatnonzero(bits).tolist()


def test_a_mask_takes_away_what_options_ban() -> None:
    rule = _Allows(2, END, 40, 70)
    assert read_mask(rule, 0) == [2, END, 40, 70]
    assert read_mask(rule, 3, min_new_tokens=4) == [2, 40, 70]
    assert read_mask(rule, 4, min_new_tokens=4) == [2, END, 40, 70]
    assert read_mask(rule, 3, min_new_tokens=4, bad_token_ids=(70, 2, 1 << 40)) == [40]
    assert read_mask(rule, 0, allowed_token_ids=(40, 70, 6), bad_token_ids=(70,)) == [40]


def test_an_error_names_what_forbids_all_together() -> None:
    with pytest.raises(RequestError, match="bad_token_ids and min_new_tokens forbid every token"):
        read_mask(_Allows(2, END), 0, min_new_tokens=1, bad_token_ids=(2,))

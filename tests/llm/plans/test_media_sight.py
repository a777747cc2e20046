"""Which media tokens attend to, against the masks of Transformers' processor."""

from __future__ import annotations

import numpy as np
import pytest

from seesay.llm.plans.media_sight import NO_STOP, find_sights, find_stops

PICTURE = 9


@pytest.mark.parametrize("seed", range(40))
def test_sights_are_the_masks_of_transformers(seed: int) -> None:
    from transformers.models.mllama.processing_mllama import (
        convert_sparse_cross_attention_mask_to_dense,
        get_cross_attention_token_mask,
    )

    rng = np.random.default_rng(seed)
    token_ids = np.where(rng.random(30) < rng.choice([0.05, 0.3, 0.7]), PICTURE, 1)
    firsts = np.flatnonzero(token_ids == PICTURE).tolist()
    if not firsts:
        assert find_stops(firsts) == () and not list(find_sights(firsts, (), 0, 30))
        return
    spans = get_cross_attention_token_mask(token_ids.tolist(), PICTURE)
    mask = convert_sparse_cross_attention_mask_to_dense([spans], [[1] * len(firsts)], 1, 30)[0, :, :, 0]
    stops = find_stops(firsts)
    assert stops[-1] == NO_STOP
    start, stop = sorted(rng.choice(31, 2, replace=False).tolist())
    for first, last in ((0, 30), (start, stop)):
        found = np.zeros_like(mask)
        for sight in find_sights(firsts, stops, first, last):
            assert first <= sight.start < sight.stop <= last
            found[sight.start : sight.stop, list(sight.item_indexes)] += 1
        assert (found[first:last] == mask[first:last]).all(), token_ids


def test_an_answer_attends_to_the_last_pictures() -> None:
    stops = find_stops([2, 3, 7])
    assert stops == (7, 7, NO_STOP)
    assert list(find_sights([2, 3, 7], stops, 100, 101)) == [(100, 101, (2,))]

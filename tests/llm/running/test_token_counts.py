"""Counts that grow with a sequence, against counting all of it again."""

from __future__ import annotations

import numpy as np

from seesay.llm.running.token_counts import TokenCounts


def test_growing_counts_equal_counting_anew() -> None:
    rng = np.random.default_rng(0)
    prompt, generated = rng.integers(0, 300, 40), rng.integers(0, 300, 500)
    counted = TokenCounts(prompt)
    for stop in (0, 1, 1, 2, 70, 71, 500):
        counted.extend(generated[:stop])
        expected = dict.fromkeys(prompt.tolist(), 0)
        for token_id in generated[:stop].tolist():
            expected[token_id] = expected.get(token_id, 0) + 1
        assert dict(zip(counted.ids.tolist(), counted.counts.tolist(), strict=True)) == expected
        assert counted.num_generated == stop

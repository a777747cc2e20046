"""n-grams: what Transformers forbids, and counts by hand."""

from __future__ import annotations

import numpy as np
import torch
from transformers.generation.logits_process import NoRepeatNGramLogitsProcessor

from seesay.llm.scheduling.ngrams import count_last, find_followers


def test_followers_are_what_transformers_forbids() -> None:
    chance = np.random.default_rng(1)
    for size in (1, 2, 3, 5):
        processor = NoRepeatNGramLogitsProcessor(size)
        for length in (1, 2, size - 1 or 1, size, size + 1, 40):
            token_ids = chance.integers(0, 3, length)
            scores = processor(torch.from_numpy(token_ids)[None], torch.zeros(1, 4))[0]
            assert set(find_followers(token_ids, size).tolist()) == set(torch.isinf(scores).nonzero()[:, 0].tolist())


def test_the_last_ngram_is_counted_with_its_overlaps() -> None:
    chance = np.random.default_rng(2)
    for size in (1, 2, 3, 7):
        for _ in range(20):
            token_ids = chance.integers(0, 2, chance.integers(1, 30))
            last = token_ids[-size:].tolist()
            windows = [token_ids[i : i + size].tolist() for i in range(len(token_ids) - size + 1)]
            assert count_last(token_ids, size) == windows.count(last)
    assert count_last(np.array([5, 5, 5, 5]), 2) == 3

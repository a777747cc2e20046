"""n-grams: what Transformers forbids, and counts by hand."""

from __future__ import annotations

import numpy as np
import torch
from transformers.generation.logits_process import NoRepeatNGramLogitsProcessor

from seesay.llm.plans.ngrams import count_last, find_followers, find_late_followers


def test_followers_are_what_transformers_forbids() -> None:
    chance = np.random.default_rng(1)
    for size in (1, 2, 3, 5):
        processor = NoRepeatNGramLogitsProcessor(size)
        for length in (1, 2, size - 1 or 1, size, size + 1, 40):
            token_ids = chance.integers(0, 3, length)
            scores = processor(torch.from_numpy(token_ids)[None], torch.zeros(1, 4))[0]
            assert set(find_followers(token_ids, size).tolist()) == set(torch.isinf(scores).nonzero()[:, 0].tolist())


def forbid_in_window(token_ids: list[int], size: int, window: int) -> set[int]:
    """What DeepSeek-OCR's processor forbids: followers of n-grams that begin among the last `window` tokens."""
    if len(token_ids) < size:
        return set()
    last = token_ids[len(token_ids) - size + 1 :]
    first = max(0, len(token_ids) - window)
    starts = [at for at in range(first, len(token_ids) - size + 1) if token_ids[at : at + size - 1] == last]
    return {token_ids[at + size - 1] for at in starts}


def test_a_window_forbids_what_deepseek_ocr_forbids() -> None:
    chance = np.random.default_rng(3)
    for size in (2, 3, 5):
        for window in (1, size - 1, size, size + 1, 9, 100):
            for length in (0, 1, size - 1, size, size + 1, 10, 40):
                token_ids = chance.integers(0, 3, length)
                wanted = forbid_in_window(token_ids.tolist(), size, window)
                assert set(find_followers(token_ids, size, window=window).tolist()) == wanted


def test_followers_of_a_late_token_are_those_of_the_token_that_comes() -> None:
    chance = np.random.default_rng(4)
    for size in (2, 3, 4, 6):
        for window in (0, 1, size - 1, size, size + 1, 12):
            for length in (0, 1, size - 2, size - 1, size, size + 1, 30):
                token_ids = chance.integers(0, 3, length)
                late, followers = find_late_followers(token_ids, size, window=window)
                for token_id in range(4):
                    all_ids = np.append(token_ids, token_id)
                    wanted = set(find_followers(all_ids, size, window=window).tolist())
                    assert set(followers[late == token_id].tolist()) == wanted, (token_ids, size, window, token_id)


def test_a_window_bounds_what_is_counted() -> None:
    token_ids = np.array([1, 2, 1, 2, 9, 1, 2])
    assert [count_last(token_ids, 2, window=window) for window in (0, 7, 6, 3, 2, 1)] == [3, 3, 2, 1, 1, 0]


def test_the_last_ngram_is_counted_with_its_overlaps() -> None:
    chance = np.random.default_rng(2)
    for size in (1, 2, 3, 7):
        for _ in range(20):
            token_ids = chance.integers(0, 2, chance.integers(1, 30))
            last = token_ids[-size:].tolist()
            windows = [token_ids[i : i + size].tolist() for i in range(len(token_ids) - size + 1)]
            assert count_last(token_ids, size) == windows.count(last)
    assert count_last(np.array([5, 5, 5, 5]), 2) == 3

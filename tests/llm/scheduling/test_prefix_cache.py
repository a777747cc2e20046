from __future__ import annotations

from typing import Any

import numpy as np

from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.scheduling.block_pool import BlockPool
from seesay.llm.scheduling.prefix_cache import PrefixCache
from seesay.llm.scheduling.sequence import Sequence
from seesay.values import MultimodalInput

BLOCK_SIZE = 4


def make_sequence(seq_id: int, num_tokens: int, **params: Any) -> Sequence:
    """All begin with the same text."""
    prompt = MultimodalInput(token_ids=np.arange(num_tokens), positions=np.arange(num_tokens), next_position=num_tokens)
    return Sequence(seq_id, prompt, SamplingParams(**params))


def begin(cache: PrefixCache, pool: BlockPool, seq: Sequence) -> None:
    """Give a sequence all its blocks, and announce that it computes them."""
    seq.block_ids = pool.allocate(pool.blocks_for(seq.num_tokens))
    cache.announce(seq, 0)


def compute(cache: PrefixCache, seq: Sequence, num_tokens: int) -> list[int]:
    """Returns the ids of those who waited for it."""
    seq.num_computed = num_tokens
    return [other.seq_id for other in cache.register(seq)]


def test_blocks_are_found_when_they_are_full_and_one_token_is_left() -> None:
    pool = BlockPool(8, BLOCK_SIZE)
    cache = PrefixCache(pool)
    first = make_sequence(1, 12)
    begin(cache, pool, first)
    assert cache.find(make_sequence(2, 12)) == ()
    compute(cache, first, 11)
    assert cache.find(make_sequence(2, 12)) == first.block_ids[:2]
    compute(cache, first, 12)
    assert cache.find(make_sequence(2, 12)) == first.block_ids[:2], "its last token is to be computed"
    assert cache.find(make_sequence(3, 13)) == first.block_ids[:3]
    assert cache.find(make_sequence(4, 13, prompt_logprobs=2)) == (), "it needs what all its positions give"


def test_who_needs_a_block_that_is_being_computed_waits_for_it() -> None:
    pool = BlockPool(8, BLOCK_SIZE)
    cache = PrefixCache(pool)
    first, second, whole = make_sequence(1, 12), make_sequence(2, 20), make_sequence(3, 20, prompt_logprobs=2)
    for seq in (first, second, whole):
        cache.find(seq)
    assert not cache.try_follow(second, 0), "nobody computes it yet"
    begin(cache, pool, first)
    assert not cache.try_follow(whole, 0)
    assert cache.try_follow(second, 0)
    assert compute(cache, first, 3) == []
    assert compute(cache, first, 4) == [2]
    assert cache.try_follow(second, len(cache.find(second)))
    assert compute(cache, first, 12) == [2]
    assert not cache.try_follow(second, len(cache.find(second))), "the fourth block is for it to compute"


def test_nobody_waits_for_one_that_gave_up() -> None:
    pool = BlockPool(8, BLOCK_SIZE)
    cache = PrefixCache(pool)
    first, second = make_sequence(1, 12), make_sequence(2, 12)
    begin(cache, pool, first)
    compute(cache, first, 4)
    assert cache.try_follow(second, len(cache.find(second)))
    assert cache.forget(first) == [second]
    assert not cache.try_follow(second, 1)


def test_what_two_compute_is_the_first_ones_to_announce() -> None:
    pool = BlockPool(8, BLOCK_SIZE)
    cache = PrefixCache(pool)
    first, second, third = (make_sequence(seq_id, 9) for seq_id in (1, 2, 3))
    begin(cache, pool, first)
    begin(cache, pool, second)
    cache.find(third)
    assert cache.try_follow(third, 0)
    assert cache.forget(second) == [], "the first one goes on"
    assert compute(cache, first, 8) == [3]


def test_without_prefix_caching_nobody_waits() -> None:
    pool = BlockPool(8, BLOCK_SIZE, enable_prefix_caching=False)
    cache = PrefixCache(pool)
    first, second = make_sequence(1, 12), make_sequence(2, 12)
    begin(cache, pool, first)
    assert compute(cache, first, 8) == [] and cache.find(second) == ()
    assert not cache.try_follow(second, 0)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.scheduling.block_pool import BlockPool
from seesay.llm.scheduling.prefix import BlockKey, make_block_key
from seesay.llm.scheduling.prefix_cache import PrefixCache
from seesay.llm.scheduling.scheduler import Scheduler, SchedulerConfig
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
    assert compute(cache, first, 4) == [], "it waits for the last block that both have"
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


def count_hashes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions of the blocks that are hashed from now on."""
    starts: list[int] = []

    def make_and_count(parent: bytes, token_ids: Any, items: Any, start: int) -> BlockKey:
        starts.append(start)
        return make_block_key(parent, token_ids, items, start)

    monkeypatch.setattr("seesay.llm.scheduling.prefix.make_block_key", make_and_count)
    return starts


def test_a_long_prompt_of_which_nothing_is_there_is_hardly_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = count_hashes(monkeypatch)
    cache = PrefixCache(BlockPool(8, BLOCK_SIZE))
    seq = make_sequence(1, 4000)
    assert cache.find(seq) == () and cache.find(seq) == ()
    assert len(starts) <= 8


def test_equal_prompts_are_hashed_once_and_wait_once(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = count_hashes(monkeypatch)
    pool = BlockPool(1000, BLOCK_SIZE)
    cache = PrefixCache(pool)
    first, *others = (make_sequence(seq_id, 2001) for seq_id in range(21))
    begin(cache, pool, first)
    assert len(starts) == 500
    assert all(cache.try_follow(seq, len(cache.find(seq))) for seq in others)
    assert compute(cache, first, 1000) == []
    assert compute(cache, first, 2000) == [seq.seq_id for seq in others]
    assert all(cache.find(seq) == first.block_ids[:500] for seq in others)
    assert len(starts) <= 500 + 20 * 8


def test_a_prompt_waits_for_no_block_behind_the_first_other_token_or_picture() -> None:
    pool = BlockPool(100, BLOCK_SIZE)
    cache = PrefixCache(pool)
    first, other, longer = make_sequence(1, 200), make_sequence(2, 200), make_sequence(3, 200)
    other.token_ids[101] = 7
    longer.media_end = 150
    begin(cache, pool, first)
    assert all(cache.try_follow(seq, len(cache.find(seq))) for seq in (other, longer))
    assert compute(cache, first, 4) == [3], "its picture is not compared"
    assert compute(cache, first, 99) == []
    assert compute(cache, first, 100) == [2]
    assert cache.find(other) == first.block_ids[:25]
    assert not cache.try_follow(other, 25)


@pytest.mark.parametrize(("num_blocks", "num_begun"), ((100, 41), (2, 59)))
def test_few_prompts_with_long_cached_beginnings_begin_at_once(num_blocks: int, num_begun: int) -> None:
    """As many in a plan as have 4,096 cached blocks in all; all of them get their turn."""
    config = SchedulerConfig(max_batch_size=100, max_prefill_token_num=400, session_len=1000)
    scheduler = Scheduler(config, BlockPool(1000, BLOCK_SIZE))
    for seq_id in range(60):
        scheduler.add(make_sequence(seq_id, num_blocks * BLOCK_SIZE + 1, max_new_tokens=1000 - num_blocks * BLOCK_SIZE))
    begun: list[int] = []
    while len(begun) < 7:
        plan = scheduler.plan_step()
        begun.append(len(plan.begun))
        scheduler.commit_step(plan, {row.seq_id: (1,) for row in plan.rows if row.samples})
        scheduler.check_integrity()
    assert begun[0] == 1 and max(begun) == num_begun and sum(begun) == 60, begun

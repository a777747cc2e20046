from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.scheduling.blocked_sequences import BlockedSequences
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.prefix_cache import PrefixCache
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.sequence import Sequence
from seesay.values import MultimodalInput

BLOCK_SIZE = 4


def make_sequence(seq_id: int, num_tokens: int, **params: Any) -> Sequence:
    """All begin with the same text."""
    prompt = MultimodalInput(token_ids=np.arange(num_tokens), positions=np.arange(num_tokens), next_position=num_tokens)
    return Sequence(seq_id, prompt, SamplingParams(**params))


class Cache:
    """A prefix cache with its pool, and those who wait for it."""

    def __init__(self, num_blocks: int = 8, **options: Any) -> None:
        self.pool = BlockPool(num_blocks, BLOCK_SIZE, **options)
        self.blocked = BlockedSequences()
        self.prefix = PrefixCache(self.pool, self.blocked)

    def find(self, seq: Sequence) -> tuple[int, ...]:
        return self.prefix.find(seq)

    def begin(self, seq: Sequence) -> None:
        """Give a sequence all its blocks, and announce that it computes them."""
        seq.block_ids = self.pool.allocate(self.pool.blocks_for(seq.num_tokens))
        self.prefix.announce(seq, 0)

    def try_follow(self, seq: Sequence, num_found: int) -> bool:
        """Let it wait for what it has in common with another one, if there is such a one."""
        cause = self.prefix.find_coming(seq, num_found)
        if cause is not None:
            self.blocked.add(seq, cause)
        return cause is not None

    def compute(self, seq: Sequence, num_tokens: int) -> list[int]:
        """Returns the ids of those who waited for it."""
        seq.num_computed = num_tokens
        self.prefix.register(seq)
        return self.take_woken()

    def forget(self, seq: Sequence) -> list[int]:
        self.prefix.forget(seq)
        return self.take_woken()

    def take_woken(self) -> list[int]:
        return [seq.seq_id for seq in self.blocked.take_woken(1000)]


def test_blocks_are_found_when_they_are_full_and_one_token_is_left() -> None:
    cache = Cache()
    first = make_sequence(1, 12)
    cache.begin(first)
    assert cache.find(make_sequence(2, 12)) == ()
    cache.compute(first, 11)
    assert cache.find(make_sequence(2, 12)) == first.block_ids[:2]
    cache.compute(first, 12)
    assert cache.find(make_sequence(2, 12)) == first.block_ids[:2], "its last token is to be computed"
    assert cache.find(make_sequence(3, 13)) == first.block_ids[:3]
    assert cache.find(make_sequence(4, 13, prompt_logprobs=2)) == (), "it needs what all its positions give"


def test_who_needs_a_block_that_is_being_computed_waits_for_it() -> None:
    cache = Cache()
    first, second, whole = make_sequence(1, 12), make_sequence(2, 20), make_sequence(3, 20, prompt_logprobs=2)
    for seq in (first, second, whole):
        cache.find(seq)
    assert not cache.try_follow(second, 0), "nobody computes it yet"
    cache.begin(first)
    assert not cache.try_follow(whole, 0)
    assert cache.try_follow(second, 0)
    assert cache.compute(first, 3) == []
    assert cache.compute(first, 4) == [], "it waits for the last block that both have"
    assert cache.compute(first, 12) == [2]
    assert not cache.try_follow(second, len(cache.find(second))), "the fourth block is for it to compute"


def test_nobody_waits_for_one_that_gave_up() -> None:
    cache = Cache()
    first, second = make_sequence(1, 12), make_sequence(2, 12)
    cache.begin(first)
    cache.compute(first, 4)
    assert cache.try_follow(second, len(cache.find(second)))
    assert cache.forget(first) == [2]
    assert not cache.try_follow(second, 1)


def test_what_two_compute_is_the_first_ones_to_announce() -> None:
    cache = Cache()
    first, second, third = (make_sequence(seq_id, 9) for seq_id in (1, 2, 3))
    cache.begin(first)
    cache.begin(second)
    cache.find(third)
    assert cache.try_follow(third, 0)
    assert cache.forget(second) == [], "the first one goes on"
    assert cache.compute(first, 8) == [3]


def test_without_prefix_caching_nobody_waits() -> None:
    cache = Cache(enable_prefix_caching=False)
    first, second = make_sequence(1, 12), make_sequence(2, 12)
    cache.begin(first)
    assert cache.compute(first, 8) == [] and cache.find(second) == ()
    assert not cache.try_follow(second, 0)


def test_a_prompt_waits_for_no_block_behind_the_first_other_token() -> None:
    cache = Cache(100)
    first, other = make_sequence(1, 200), make_sequence(2, 200)
    other.token_ids[101] = 7
    cache.begin(first)
    assert cache.try_follow(other, len(cache.find(other)))
    assert cache.compute(first, 99) == []
    assert cache.compute(first, 100) == [2]
    assert cache.find(other) == first.block_ids[:25]
    assert not cache.try_follow(other, 25)


def test_keys_of_a_prompt_live_as_long_as_one_that_has_it() -> None:
    cache = Cache()
    first, second = make_sequence(1, 12), make_sequence(2, 12)
    cache.prefix.prepare(first)
    cache.prefix.prepare(second)
    assert first.prompt_keys is second.prompt_keys and first.block_keys is not second.block_keys
    keys = weakref.ref(first.prompt_keys)
    del first
    assert keys() is not None
    del second
    assert keys() is None


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


@pytest.mark.parametrize(
    ("caching", "shares", "is_named"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_blocks_have_names_where_others_may_find_them(caching: bool, shares: bool, is_named: bool) -> None:
    cache = Cache(enable_prefix_caching=caching)
    seq = make_sequence(1, 9)
    seq.shares_blocks = shares
    assert cache.prefix.name_blocks(seq, 8) is is_named
    assert len(seq.block_keys) == (2 if is_named else 0)

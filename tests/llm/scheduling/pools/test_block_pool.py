from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from llm.tables import fill, make_chain
from pairs import num_examples

from seesay.llm.plans.block_key import BlockKey
from seesay.llm.scheduling.pools.block_pool import BlockPool


def test_what_was_released_is_found_until_its_block_is_needed() -> None:
    pool = BlockPool(3, 4)
    table = fill(pool, "a", "b")
    assert pool.find(make_chain("a", "b", "c")) == table
    pool.release(table)
    assert (pool.num_used, pool.num_cached, pool.num_available) == (0, 2, 3)
    assert pool.find(make_chain("a", "b")) == table
    pool.allocate(2)
    assert pool.find(make_chain("a", "b")) == table[:1], "the free block goes first, then the end of the chain"
    pool.allocate(1)
    assert pool.find(make_chain("a", "b")) == ()
    pool.check_integrity()


def test_shared_blocks_return_with_their_last_holder() -> None:
    pool = BlockPool(4, 4)
    table = fill(pool, "a", "b")
    shared = pool.find(make_chain("a", "x"))
    assert pool.count_cached(shared) == 0
    pool.acquire(shared)
    pool.release(table)
    assert pool.num_used == 1
    assert pool.count_cached(table) == 1
    pool.release(shared)
    assert pool.num_used == 0
    with pytest.raises(AssertionError, match="once too often"):
        pool.release(shared)


def test_acquiring_protects_from_eviction() -> None:
    pool = BlockPool(2, 4)
    pool.release(fill(pool, "a", "b"))
    pool.acquire(pool.find(make_chain("a")))
    pool.allocate(1)
    assert pool.num_available == 0
    assert len(pool.find(make_chain("a", "b"))) == 1
    with pytest.raises(AssertionError, match="1 blocks asked for, 0 available"):
        pool.allocate(1)


def test_the_oldest_contents_leave_first() -> None:
    pool = BlockPool(3, 4)
    for word in ("a", "b", "c"):
        pool.release(fill(pool, word))
    again = pool.find(make_chain("a"))
    pool.acquire(again)
    pool.release(again)
    pool.allocate(1)
    assert [bool(pool.find(make_chain(word))) for word in ("a", "b", "c")] == [True, False, True]


def test_a_second_block_of_the_same_content_stays_anonymous() -> None:
    pool = BlockPool(2, 4)
    first, second = fill(pool, "a"), fill(pool, "a")
    assert pool.find(make_chain("a")) == first
    pool.release(second)
    assert pool.num_cached == 0
    pool.check_integrity([first])


def test_an_equal_hash_of_other_content_is_no_match() -> None:
    pool = BlockPool(2, 4)
    fill(pool, "a")
    (key,) = make_chain("a")
    assert pool.find([BlockKey(key.hash, b"forged")]) == ()


def test_without_prefix_caching_nothing_is_remembered() -> None:
    pool = BlockPool(2, 4, enable_prefix_caching=False)
    pool.release(fill(pool, "a"))
    assert pool.find(make_chain("a")) == ()
    assert pool.num_cached == 0


def test_what_is_on_the_host_comes_back_to_a_block_of_its_own() -> None:
    pool = BlockPool(3, 4, num_host_slots=3)
    table = fill(pool, "a", "b")
    pool.release(table)
    pool.release(pool.allocate(3))
    saves, loads = pool.host.take_copies()
    assert sorted(save.block_id for save in saves) == sorted(table) and not loads
    slot_of = {save.block_id: save.slot for save in saves}
    places = pool.find(make_chain("a", "b"))
    assert places == tuple(pool.num_blocks + slot_of[block_id] for block_id in table)
    assert pool.count_cached(places) == 2
    block_ids = pool.acquire(places)
    saves, loads = pool.host.take_copies()
    assert not saves and [(load.block_id, load.slot) for load in loads] == [
        (block_id, slot_of[before]) for block_id, before in zip(block_ids, table, strict=True)
    ]
    pool.check_integrity([block_ids])


class PoolMachine(RuleBasedStateMachine):
    """Sequences come, share what they can find, and go. What a table's blocks hold is tracked beside the pool."""

    @initialize(num_blocks=st.integers(1, 10), caching=st.booleans())
    def start(self, num_blocks: int, caching: bool) -> None:
        self.pool = BlockPool(num_blocks, 4, caching)
        self.contents: dict[int, tuple[str, ...]] = {}
        self.tables: list[tuple[tuple[int, ...], tuple[str, ...]]] = []

    @rule(words=st.lists(st.sampled_from("abc"), min_size=1, max_size=5).map(tuple))
    def come(self, words: tuple[str, ...]) -> None:
        keys = make_chain(*words)
        found = self.pool.find(keys)
        for depth, block_id in enumerate(found):
            assert self.contents[block_id] == words[: depth + 1], "found a block of other content"
        if not self.pool.can_allocate(len(words) - len(found) + self.pool.count_cached(found)):
            return
        self.pool.acquire(found)
        block_ids = found + self.pool.allocate(len(words) - len(found))
        for depth in range(len(found), len(words)):
            self.contents[block_ids[depth]] = words[: depth + 1]
            self.pool.register(block_ids[depth], keys[depth])
        self.tables.append((block_ids, words))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        block_ids, _ = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(block_ids)

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_integrity([table for table, _ in self.tables])
        for table, words in self.tables:
            assert [self.contents[block_id] for block_id in table] == [words[: d + 1] for d in range(len(words))]

    def teardown(self) -> None:
        for table, _ in getattr(self, "tables", []):
            self.pool.release(table)
        if hasattr(self, "pool"):
            assert self.pool.num_used == 0


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=num_examples(80), stateful_step_count=40, deadline=None)


def test_contents_that_are_found_elsewhere_are_noticed() -> None:
    pool = BlockPool(4, 4)
    fill(pool, "a")
    pool.check_integrity()
    pool._by_hash.clear()
    with pytest.raises(AssertionError):
        pool.check_integrity()

from __future__ import annotations

import pytest
from llm.tables import fill, make_chain

from seesay.llm.plans.block_key import BlockKey
from seesay.llm.plans.step_plan import BlockCopy
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.pools.host_slots import HostSlots


def which_are_there(slots: HostSlots, *words: str) -> str:
    return "".join(word for word in words if slots.find(make_chain(word)[0]) is not None)


def save(slots: HostSlots, *words: str) -> None:
    for block_id, word in enumerate(words):
        slots.save(block_id, make_chain(word)[0])


# --- slots -----------------------------------------------------------------------------------------------------------


def test_the_oldest_contents_leave_first() -> None:
    slots = HostSlots(3)
    save(slots, "a", "b", "c")
    assert slots.take_copies() == (((0, 0), (1, 1), (2, 2)), ())
    save(slots, "a")
    assert slots.take_copies() == ((), ()), "it is there already"
    save(slots, "d")
    assert which_are_there(slots, *"abcd") == "acd", "asking to save it again was a use of it"
    assert slots.take_copies() == ((BlockCopy(block_id=0, slot=1),), ())
    slots.check_integrity()


def test_a_chain_leaves_from_its_end() -> None:
    slots = HostSlots(3)
    save(slots, "x", "a", "b")
    slots.hold([1, 2])
    slots.take_copies()
    save(slots, "y")
    assert which_are_there(slots, *"xaby") == "aby"
    save(slots, "z")
    assert which_are_there(slots, *"xabyz") == "ayz"


def test_what_a_step_loads_stays_until_it_is_taken() -> None:
    slots = HostSlots(1)
    save(slots, "a")
    slots.hold([0])
    slots.load(0, 7)
    save(slots, "b")
    assert which_are_there(slots, *"ab") == "a", "there is no slot for b"
    assert slots.take_copies() == (((0, 0),), ((7, 0),)), "saved first, then loaded"
    save(slots, "b")
    assert which_are_there(slots, *"ab") == "b"
    assert slots.take_copies() == (((0, 0),), ())
    assert (slots.num_used, slots.total_loads) == (1, 1)


def test_a_slot_that_is_needed_twice_is_saved_once() -> None:
    slots = HostSlots(1)
    save(slots, "a", "b")
    assert slots.take_copies() == ((BlockCopy(block_id=1, slot=0),), ())


def test_an_equal_hash_of_other_content_is_no_match() -> None:
    slots = HostSlots(1)
    save(slots, "a")
    (key,) = make_chain("a")
    assert slots.find(key) == 0
    assert slots.find(BlockKey(key.hash, b"forged")) is None


def test_without_slots_nothing_is_kept() -> None:
    slots = HostSlots(0)
    save(slots, "a")
    assert which_are_there(slots, "a") == "" and slots.take_copies() == ((), ())


# --- a pool with slots -----------------------------------------------------------------------------------------------


def test_what_the_device_evicts_is_found_on_the_host() -> None:
    pool = BlockPool(4, 16, num_host_slots=4)
    table = fill(pool, "a", "b", "c")
    pool.release(table)
    pool.release(pool.allocate(3))  # one was free, the last two of the chain are evicted
    assert pool.host.take_copies()[0] == ((table[2], 0), (table[1], 1))
    places = pool.find(make_chain("a", "b", "c", "d"))
    assert places == (table[0], pool.num_blocks + 1, pool.num_blocks + 0)
    assert pool.count_cached(places) == 3
    again = pool.acquire(places)
    assert again[0] == table[0] and len(set(again)) == 3 and pool.num_used == 3
    assert pool.host.take_copies() == ((), ((again[1], 1), (again[2], 0)))
    assert pool.find(make_chain("a", "b", "c")) == places, "nothing has arrived yet"
    for block_id, key in zip(again, make_chain("a", "b", "c"), strict=True):
        pool.register(block_id, key)
    assert pool.find(make_chain("a", "b", "c")) == again, "others share them when the step is over"
    assert pool.count_cached(again) == 0
    pool.check_integrity([again])


def test_a_full_pool_swaps_within_one_step() -> None:
    """The blocks that take what comes from the host give theirs to it: everything has moved, nothing is lost."""
    pool = BlockPool(2, 16, num_host_slots=4)
    first = fill(pool, "a", "b")
    pool.release(first)
    second = fill(pool, "x", "y")
    pool.release(second)
    pool.host.take_copies()
    again = pool.acquire(pool.find(make_chain("a", "b")))
    saves, loads = pool.host.take_copies()
    assert sorted(copy.block_id for copy in saves) == sorted(copy.block_id for copy in loads) == [0, 1]
    assert {copy.slot for copy in saves}.isdisjoint(copy.slot for copy in loads)
    assert [place >= 2 for place in pool.find(make_chain("x", "y"))] == [True, True]
    pool.check_integrity([again])


def test_loading_does_not_evict_what_it_continues() -> None:
    pool = BlockPool(2, 16, num_host_slots=1)
    pool.release(fill(pool, "a", "b"))
    pool.release(pool.allocate(1))  # the end of the chain is on the host, its beginning on the device
    pool.host.take_copies()
    keys = make_chain("a", "b")
    table = pool.acquire(pool.find(keys))
    pool.register(table[1], keys[1])
    assert len(set(table)) == 2 and pool.find(keys) == table
    with pytest.raises(AssertionError, match="1 blocks asked for, 0 available"):
        pool.allocate(1)


def test_what_was_forgotten_leaves_its_slot_to_others() -> None:
    slots = HostSlots(2)
    save(slots, "a", "b")
    with pytest.raises(AssertionError, match="copies are planned"):
        slots.forget(make_chain("a")[0])
    slots.take_copies()
    slots.forget(make_chain("a")[0])
    slots.forget(make_chain("x")[0])
    slots.check_integrity()
    assert which_are_there(slots, *"ab") == "b" and slots.num_used == 1
    save(slots, "c")
    assert which_are_there(slots, *"abc") == "bc"
    slots.take_copies()
    slots.forget_slots(range(2))
    slots.check_integrity()
    assert which_are_there(slots, *"abc") == "" and slots.num_used == 0

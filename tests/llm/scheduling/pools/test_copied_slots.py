"""Copies between slots are made in the order in which slots were taken; what is forgotten is found nowhere."""

from __future__ import annotations

from seesay.llm.plans.block_key import BlockKey
from seesay.llm.plans.step_plan import CopiedBlock
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.pools.copied_slots import CopiedSlots


def make_key(name: str) -> BlockKey:
    return BlockKey(name.encode().ljust(32), name.encode())


def fill(slots: CopiedSlots, pool: BlockPool, name: str) -> int:
    slot = slots.take()
    pool.register(slot, make_key(name))
    pool.release((slot,))
    return slot


def test_contents_move_to_the_host_and_back() -> None:
    pool = BlockPool(2, 1, num_host_slots=3)
    slots = CopiedSlots(pool)
    first, second = fill(slots, pool, "a"), fill(slots, pool, "b")
    assert not slots.take_copies()
    third = fill(slots, pool, "c")
    assert third == first
    [moved] = slots.take_copies()
    assert moved.source == first and moved.target < 0
    [place] = pool.find([make_key("a")])
    assert place == slots.place_of(moved.target) >= pool.num_blocks
    held = slots.acquire((place,))
    assert held == (second,), "used longest ago"
    saved, loaded = slots.take_copies()
    assert saved.source == second and loaded == CopiedBlock(moved.target, second)
    slots.copy(second, third)
    assert slots.take_copies() == (CopiedBlock(second, third),)


def test_what_is_forgotten_is_found_neither_here_nor_on_the_host() -> None:
    pool = BlockPool(1, 1, num_host_slots=2)
    slots = CopiedSlots(pool)
    for name in ("a", "b", "c"):
        fill(slots, pool, name)
    slots.take_copies()
    places = [pool.find([make_key(name)]) for name in ("a", "b", "c")]
    assert [place >= 1 for (place,) in places] == [True, True, False]
    slots.forget([places[0][0], places[2][0]])
    assert [bool(pool.find([make_key(name)])) for name in ("a", "b", "c")] == [False, True, False]
    slots.reset()
    assert not pool.find([make_key("b")]) and pool.num_available == 1

"""Sequences pass from one queue to the other, and take what they hold with them. An engine that checks all that it is
asked for serves most of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from llm.fake_engine import FakeEngine, make_prompt
from llm.scheduling.test_scheduler import make_scheduler, make_sequence, rows, run_until_idle, step
from llm.scheduling.test_sequence_groups import GROUP, make_member
from llm.test_scheduler_random import serve_at_random

from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.sequence import Sequence
from seesay.llm.scheduling.state_slots import SnapshotPlaces, StateSlots


def make_engine(*, caching: bool = True, num_adapter_slots: int = 0, budget: int = 32) -> FakeEngine:
    config = SchedulerConfig(
        max_batch_size=6, max_prefill_token_num=budget, session_len=60, num_adapter_slots=num_adapter_slots
    )
    return FakeEngine(config, BlockPool(64, 4, enable_prefix_caching=caching))


def test_owners_are_known_as_long_as_they_have_sequences() -> None:
    """Whether these wait, run or have ended."""
    sequences = [make_sequence(number, 4) for number in range(3)]
    for seq, owner in zip(sequences, "aba", strict=True):
        seq.owner = owner
    scheduler = make_scheduler(sequences, batch=2)
    assert scheduler._live.owners == Counter(a=2, b=1)
    step(scheduler)
    assert scheduler._live.owners == Counter(a=2, b=1) and scheduler._live.waiting.num_running == Counter(a=1, b=1)
    assert scheduler.abort(2)
    assert scheduler._live.owners == Counter(a=1, b=1)
    run_until_idle(scheduler)
    assert not scheduler._live.owners and not scheduler._live.waiting.num_running


def test_sequences_arrive_one_after_the_other_and_are_placed_by_priority() -> None:
    sequences = [make_sequence(number, 4) for number in range(3)]
    sequences[1].priority = -1
    scheduler = make_scheduler(sequences, batch=1)
    assert [seq.arrival for seq in sequences] == [0, 1, 2]
    assert sorted(sequences, key=lambda seq: seq.place) == [sequences[1], sequences[0], sequences[2]]
    assert rows(scheduler.plan_step()) == [(1, 0, 4)]


def test_one_that_is_brought_forward_is_before_all_others() -> None:
    """Of its owner, whatever their priorities are; and pictures are asked for in that order."""
    sequences = [make_sequence(number, 8, (2, 4, number)) for number in range(3)]
    sequences[0].priority = -7
    scheduler = make_scheduler(sequences, batch=1, ahead=1)
    scheduler._live.bring_forward(sequences[2])
    scheduler.check_integrity()
    assert scheduler._live.waiting.find_next() is sequences[2]
    assert [job.seq_id for job in scheduler.plan_step().encode_jobs] == [2]


# --- beginnings -------------------------------------------------------------------------------------------------------


def test_the_longer_beginning_counts_whoever_has_it() -> None:
    """Here the prefix cache; one of the group has computed less in common."""
    engine = make_engine()
    engine.add(make_member(1, 13, group_id=None))
    engine.drain()
    other = make_member(2, 13, other_from=5, answer=20)
    engine.add(other)
    for _ in range(3):
        engine.step()
    third = make_member(3, 13)
    engine.add(third)
    engine.drain()
    assert (other.num_cached_tokens, third.num_cached_tokens) == (4, 12)


def test_one_of_the_group_may_have_more_than_the_prefix_cache() -> None:
    engine = make_engine()
    engine.add(make_member(1, 15, answer=20))
    for _ in range(2):
        engine.step()
    second = make_member(2, 15)
    engine.add(second)
    engine.drain()
    assert second.num_cached_tokens == 14


def test_a_scheduler_at_random_holds_nothing_in_the_end() -> None:
    """A tiny pool, a host that keeps little, steps that are lost, and proposed tokens."""
    for seed, options in enumerate(({"share_lost": 0.1}, {"draft": 3}, {"is_ahead": True}, {"is_prefix_lm": True})):
        engine = serve_at_random(seed, num_blocks=16, num_host_slots=6, **options)  # type: ignore[arg-type]
        scheduler = engine.scheduler
        assert not scheduler.has_work and not scheduler.sequences and scheduler.stats().num_used_kv_blocks == 0
        assert not scheduler._live.owners and not scheduler._live.running and not scheduler._live.blocked


# --- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_the_slot_of_an_adapter_is_free_when_its_last_sequence_ends(num_steps: int) -> None:
    engine = make_engine(num_adapter_slots=1)
    params = SamplingParams(max_new_tokens=8, ignore_eos=True)
    for number in (1, 2):
        engine.add(Sequence(number, make_prompt([(6, -1)], number), params, adapter_id=number))
    for _ in range(num_steps):
        engine.step()
    engine.end(1)
    engine.drain()
    engine.scheduler.check_integrity()
    assert not engine.scheduler.sequences


def test_nobody_finds_a_prefix_that_was_forgotten() -> None:
    """Of those that run, too, and of what their groups keep."""
    engine = make_engine()
    engine.add(make_member(1, 13, stays=True))
    while engine.scheduler.has_work:
        engine.step()
    engine.add(running := make_member(2, 13, answer=20))
    engine.step()
    assert running.num_cached_tokens == 12 and engine.scheduler.stats().num_used_kv_blocks > 4
    engine.scheduler.forget_prefixes()
    engine.scheduler.check_integrity()
    assert engine.scheduler.stats().num_used_kv_blocks == len(running.block_ids), "nothing is kept"
    engine.add(later := make_member(3, 13))
    engine.scheduler.end_group(GROUP)
    engine.drain()
    assert later.num_cached_tokens == 0


def test_nobody_finds_a_forgotten_prefix_on_the_host() -> None:
    found = []
    for forgets in (False, True):
        scheduler = make_scheduler([make_sequence(1, 9, max_new_tokens=1)], blocks=4, host=8)
        run_until_idle(scheduler)
        scheduler.add(make_sequence(2, 16, max_new_tokens=1))
        run_until_idle(scheduler)
        if forgets:
            scheduler.forget_prefixes()
        scheduler.add(make_sequence(3, 9, text=1, max_new_tokens=1))
        found.append(rows(step(scheduler)))
    assert found == [[(3, 8, 1)], [(3, 0, 9)]]


@pytest.mark.parametrize("group_id", [GROUP, None])
def test_who_waits_for_a_prefix_that_is_forgotten_computes_it(group_id: int | None) -> None:
    """At once, beside the one for which it has waited."""
    engine = make_engine(caching=group_id is None, budget=24)
    second = make_member(2, 30, group_id=group_id)
    engine.add(make_member(1, 30, group_id=group_id))
    engine.add(second)
    engine.step()
    assert [row.seq_id for row in engine.plans[-1].rows] == [1]
    engine.scheduler.forget_prefixes()
    engine.scheduler.check_integrity()
    engine.step()
    assert [(row.seq_id, row.num_tokens) for row in engine.plans[-1].rows] == [(1, 6), (2, 18)]
    engine.drain()
    assert second.num_cached_tokens == 0


def forget(scheduler: Scheduler) -> None:
    scheduler.forget_prefixes()


def abort(scheduler: Scheduler) -> None:
    assert scheduler.abort(1)


@pytest.mark.parametrize("group_id", [GROUP, None])
@pytest.mark.parametrize("happens", [forget, abort])
def test_nobody_waits_for_what_will_not_be_found(happens: Callable[[Scheduler], None], group_id: int | None) -> None:
    """While a step that computes it is under way."""
    sequences = [make_sequence(number, 13, text=0) for number in (1, 2)]
    for seq in sequences:
        seq.group_id = group_id
    scheduler = make_scheduler(sequences, caching=group_id is None)
    plan = scheduler.plan_step()
    assert rows(plan) == [(1, 0, 13)] and rows(scheduler.plan_step(only=(2,))) == [], "the second one waits"
    happens(scheduler)
    assert rows(scheduler.plan_step(only=(2,))) == [(2, 0, 13)]


@pytest.mark.parametrize("with_states", [False, True])
def test_nobody_finds_the_blocks_of_a_faulty_sequence(with_states: bool) -> None:
    engine = make_stateful_engine() if with_states else make_engine()
    engine.add(make_member(1, 13, group_id=None, answer=9))
    for _ in range(3):
        engine.step()
    engine.scheduler.forget_blocks(1)
    engine.scheduler.check_integrity()
    engine.add(second := make_member(2, 13, group_id=None))
    engine.drain()
    assert second.num_cached_tokens == 0


# --- states -----------------------------------------------------------------------------------------------------------


def make_stateful_engine(*, caching: bool = True, num_states: int = 8) -> FakeEngine:
    config = SchedulerConfig(max_batch_size=4, max_prefill_token_num=16, session_len=40)
    states = StateSlots(num_states, SnapshotPlaces(4, 8), enable_prefix_caching=caching, num_host_slots=3)
    return FakeEngine(config, BlockPool(60, 4, enable_prefix_caching=caching), states=states)


@pytest.mark.parametrize("caching", [False, True])
def test_states_are_right_whatever_is_lost_and_forgotten(caching: bool) -> None:
    """The engine reads the state of each row, and compares every answer with that of the sequence alone."""
    for seed in range(8):
        draw, engine = random.Random(seed), make_stateful_engine(caching=caching, num_states=5)
        states = engine.scheduler._live.states
        assert states is not None
        for number in range(30):
            length = draw.choice([5, 13, 14, 22, 30])
            engine.add(make_member(number, length, other_from=draw.choice([9, 17, 99]), group_id=None))
            while draw.random() < 0.6:
                match draw.randrange(8):
                    case 0:
                        engine.lose(with_the_one_before=False, spoils=True)
                    case 1:
                        engine.scheduler.forget_prefixes()
                    case _:
                        engine.step()
                engine.scheduler.check_integrity()
        engine.drain()
        assert not states.pool.num_used and bool(states.total_snapshots) is caching

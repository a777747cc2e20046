"""Which tokens the rows of a step have."""

from __future__ import annotations

from typing import Any

import pytest
from llm.scheduling.test_scheduler import commit, make_scheduler, make_sequence, picture_hash, rows, step

from seesay.llm.plans.step_plan import MAX_DRAFTS, UNPROPOSED, StepPlan
from seesay.llm.plans.traits import LengthScaling
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.state_slots import SnapshotPlaces, StateSlots


@pytest.mark.parametrize(("proposed", "num_tokens"), [((), 1), ((7,), 2), ((7, 8, 9), 4), ((7,) * 40, 10)])
def test_proposed_tokens_are_computed_with_the_last_one_of_an_answer(
    proposed: tuple[int, ...], num_tokens: int
) -> None:
    """As many as the answer may still have."""
    scheduler = make_scheduler([make_sequence(1, 9, max_new_tokens=11, ignore_eos=True)])
    step(scheduler)
    plan = scheduler.plan_step(None, {1: proposed})
    assert rows(plan) == [(1, 9, num_tokens)]


def test_nothing_is_proposed_for_a_prompt() -> None:
    scheduler = make_scheduler([make_sequence(1, 9)])
    assert rows(scheduler.plan_step(None, {1: (7, 8)})) == [(1, 0, 9)]


PROPOSED = (5,) * 20


def propose(scheduler: Scheduler, proposed: tuple[int, ...] = PROPOSED) -> StepPlan:
    """Plan a step for which the same tokens are proposed to all."""
    return scheduler.plan_step(drafts=dict.fromkeys(scheduler.sequences, proposed))


@pytest.mark.parametrize(
    ("limits", "num_proposed"),
    [
        ({}, 20),
        ({"session_len": 20}, 9),
        ({"blocks": 5}, 6),
        ({"blocks": 4}, 2),
        ({"blocks": 3}, 1),
        ({"budget": 10}, 4),
        ({"budget": 11}, 5),
    ],
)
def test_proposed_tokens_have_room(limits: dict[str, Any], num_proposed: int) -> None:
    """In the session, in free blocks but one for each that runs, and in the half of a step."""
    scheduler = make_scheduler([make_sequence(1, 9, max_new_tokens=60)], caching=False, **limits)
    step(scheduler)
    plan = propose(scheduler)
    assert [len(row.drafts) for row in plan.rows] == [num_proposed]
    assert rows(plan) == [(1, 9, 1 + num_proposed)]


@pytest.mark.parametrize(("blocks", "num_proposed"), [(6, [2, 2]), (7, [2, 2]), (8, [2, 2]), (9, [6, 2])])
def test_proposed_tokens_leave_a_block_to_each_that_runs(blocks: int, num_proposed: list[int]) -> None:
    """Each of two has three blocks, with room for two tokens behind the last known one."""
    sequences = [make_sequence(seq_id, 9, max_new_tokens=60) for seq_id in (1, 2)]
    scheduler = make_scheduler(sequences, caching=False, blocks=blocks)
    step(scheduler)
    assert [len(row.drafts) for row in propose(scheduler).rows] == num_proposed


def test_a_row_has_no_more_proposed_tokens_than_runners_take() -> None:
    scheduler = make_scheduler([make_sequence(1, 9, max_new_tokens=90)], budget=200, session_len=100)
    step(scheduler)
    assert len(propose(scheduler, (5,) * 85).rows[0].drafts) == MAX_DRAFTS


@pytest.mark.parametrize(("limits", "num_proposed"), [({}, 20), ({"budget": 4}, 20), ({"session_len": 20}, 15)])
def test_a_step_that_proposes_by_itself_goes_on_behind_the_last_token_of_an_answer(
    limits: dict[str, Any], num_proposed: int
) -> None:
    """It takes no tokens from prompts, as it has none; but it needs places in the session, and blocks."""
    scheduler = make_scheduler([make_sequence(1, 3, max_new_tokens=3)], **limits)
    step(scheduler)
    assert [len(row.drafts) for row in propose(scheduler, (UNPROPOSED,) * 20).rows] == [num_proposed]


def test_proposed_tokens_are_counted_against_those_that_follow() -> None:
    """Of 22 tokens two are those of the answers, and ten may be proposed beside a prompt."""
    scheduler = make_scheduler([make_sequence(seq_id, 2, max_new_tokens=60) for seq_id in (1, 2)], budget=22)
    step(scheduler)
    plan = scheduler.plan_step(drafts={1: (5,) * 6, 2: (5,) * 6})
    assert [len(row.drafts) for row in plan.rows] == [6, 4]
    scheduler.abandon([plan])
    scheduler.add(make_sequence(3, 30))
    unproposed = (UNPROPOSED,) * 6
    plan = scheduler.plan_step(drafts={1: unproposed, 2: unproposed})
    assert [len(row.drafts) for row in plan.rows] == [6, 6, 0] and rows(plan)[2:] == [(3, 0, 20)]


def test_nothing_is_proposed_behind_a_token_that_is_not_known() -> None:
    """Nor is a step planned ahead of one that computes proposed tokens."""
    scheduler = make_scheduler([make_sequence(1, 9, max_new_tokens=60)])
    scheduler.plan_step()
    ahead = propose(scheduler)
    assert rows(ahead) == [(1, 9, 1)] and not ahead.rows[0].drafts
    scheduler.abandon([ahead])
    step(scheduler)
    assert len(propose(scheduler).rows[0].drafts) == 20
    assert not scheduler.plan_step().rows


def test_nothing_is_proposed_for_one_that_catches_up() -> None:
    """Unless the tokens before a wrong one are computed once more anyway, from a state."""
    scheduler = make_scheduler([make_sequence(1, 9, max_new_tokens=60)])
    scheduler.commit_step(scheduler.plan_step(), {1: (7, 7, 7)})
    plan = propose(scheduler)
    assert rows(plan) == [(1, 9, 3)] and not plan.rows[0].drafts
    config = SchedulerConfig(max_batch_size=4, max_prefill_token_num=64, session_len=100)
    stateful = Scheduler(config, BlockPool(60, 4), states=StateSlots(8, SnapshotPlaces(4, 40)))
    stateful.add(make_sequence(1, 10, max_new_tokens=60))
    while not stateful.sequences[1].num_generated:
        plan = propose(stateful)
        assert not any(row.drafts for row in plan.rows), "it has no answer yet"
        stateful.commit_step(plan, {1: (7, 7)})
    plan = propose(stateful)
    assert rows(plan) == [(1, 10, 22)] and len(plan.rows[0].drafts) == 20
    stateful.check_integrity()


def make_growing(trained: int, session_len: int = 100, blocks: int = 60) -> Scheduler:
    """A prompt of 10 tokens, whose keys change when it has more than `trained`."""
    config = SchedulerConfig(
        max_batch_size=4,
        max_prefill_token_num=64,
        session_len=session_len,
        length_scaling=LengthScaling(kind="switch", trained=trained),
    )
    scheduler = Scheduler(config, BlockPool(blocks, 4))
    scheduler.add(make_sequence(1, 10, max_new_tokens=60))
    return scheduler


def test_proposed_tokens_do_not_outgrow_the_keys_before_them() -> None:
    for trained, num_proposed in ((13, 2), (12, 0)):
        scheduler = make_growing(trained)
        step(scheduler)
        assert len(propose(scheduler, (5, 5)).rows[0].drafts) == num_proposed


@pytest.mark.parametrize("limits", [{"trained": 12}, {"trained": 50, "session_len": 13}, {"trained": 50, "blocks": 3}])
def test_nothing_is_planned_ahead_of_a_token_that_changes_or_ends_a_sequence(limits: dict[str, Any]) -> None:
    """Its keys are others then, or it has no room for more."""
    scheduler = make_growing(**limits)
    planned = [rows(scheduler.plan_step()) for _ in range(5)]
    assert planned == [[(1, 0, 10)], [(1, 10, 1)], [(1, 11, 1)], [], []]


def test_who_gives_up_its_place_pauses_and_is_preempted_when_it_is_computed() -> None:
    """The plan names it, and those whose blocks others take."""
    sequences = [make_sequence(seq_id, 4, max_new_tokens=60) for seq_id in (1, 2, 3)]
    for seq, owner in zip(sequences, "aab", strict=True):
        seq.owner = owner
    scheduler = make_scheduler(sequences[:2], batch=2)
    first = scheduler.plan_step()
    scheduler.add(sequences[2])
    second = scheduler.plan_step()
    assert rows(second) == [(1, 4, 1)] and not second.preempted_ids
    commit(scheduler, first)
    third = scheduler.plan_step()
    assert third.preempted_ids == (2,) and rows(third) == [(1, 5, 1), (3, 0, 4)]


def test_only_some_are_planned_and_nobody_gives_up_a_place_for_others() -> None:
    sequences = [make_sequence(seq_id, 4, max_new_tokens=60) for seq_id in (1, 2, 3)]
    for seq, owner in zip(sequences, "aab", strict=True):
        seq.owner = owner
    scheduler = make_scheduler(sequences[:2], batch=2)
    step(scheduler)
    scheduler.add(sequences[2])
    plan = scheduler.plan_step(only={2})
    assert rows(plan) == [(2, 4, 1)] and not plan.preempted_ids


def test_a_step_is_streamed_if_one_of_its_answers_goes_on_and_is() -> None:
    """The first token of an answer does not count: its row is that of the prompt."""
    streamed, other = make_sequence(1, 4, max_new_tokens=60), make_sequence(2, 4, max_new_tokens=60)
    streamed.is_streamed = True
    scheduler = make_scheduler([streamed, other])
    assert not step(scheduler).is_streamed
    assert step(scheduler).is_streamed
    plan = scheduler.plan_step(only={2})
    assert plan.rows and not plan.is_streamed


def test_many_that_may_begin_do_so_in_one_step() -> None:
    """All that waited for the same picture, when it is there."""
    scheduler = make_scheduler(
        [make_sequence(seq_id, 4, (0, 2, 1)) for seq_id in range(100)], batch=100, budget=1000, blocks=200
    )
    num_jobs = 0
    while jobs := scheduler.plan_step().encode_jobs:
        num_jobs += len(jobs)
    assert num_jobs == 100
    scheduler.mark_ready(picture_hash(1))
    plan = scheduler.plan_step()
    print(len(plan.rows))
    assert len(plan.rows) == 100

"""What is known of a step when it was computed."""

from __future__ import annotations

import pytest
from llm.scheduling.test_scheduler import make_scheduler, make_sequence, step

from seesay.llm.plans.step_plan import DraftCounts
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.state_slots import SnapshotPlaces, StateSlots


@pytest.mark.parametrize(("tokens", "num_accepted"), [((5,), 0), ((7, 5), 1), ((7, 8, 5), 2)])
def test_proposed_tokens_are_counted(tokens: tuple[int, ...], num_accepted: int) -> None:
    """Those that were right, and all of them. The answer goes on behind the last right one."""
    seq = make_sequence(1, 9, max_new_tokens=20, ignore_eos=True)
    scheduler = make_scheduler([seq])
    step(scheduler)
    plan = scheduler.plan_step(None, {1: (7, 8)})
    [update] = scheduler.commit_step(plan, {1: tokens}, {1: DraftCounts(2, num_accepted)})
    scheduler.check_integrity()
    assert update.token_ids == tokens
    stats = scheduler.stats()
    assert (stats.total_draft_tokens, stats.total_accepted_tokens) == (2, num_accepted)
    assert (seq.num_drafted, seq.num_accepted, seq.num_drafts) == (2, num_accepted, 0)
    [row] = step(scheduler).rows
    assert (row.start, row.num_tokens) == (10 + num_accepted, 1)


def test_counts_go_on_from_step_to_step() -> None:
    """Without counts of a runner, all proposed tokens that have become some of the answer were accepted."""
    seq = make_sequence(1, 9, max_new_tokens=40, ignore_eos=True)
    scheduler = make_scheduler([seq])
    step(scheduler)
    for tokens in ((7, 8, 9, 5), (7, 5), (7, 8, 5)):
        scheduler.commit_step(scheduler.plan_step(None, {1: (7, 8, 9)}), {1: tokens})
        scheduler.check_integrity()
    stats = scheduler.stats()
    assert (stats.total_draft_tokens, stats.total_accepted_tokens) == (9, 3 + 1 + 2)
    assert (seq.num_drafted, seq.num_accepted) == (9, 6) and seq.num_computed == 9 + 4 + 2 + 3


def test_a_state_that_wrong_tokens_have_changed_is_computed_again() -> None:
    config = SchedulerConfig(max_batch_size=4, max_prefill_token_num=64, session_len=100)
    scheduler = Scheduler(config, BlockPool(60, 4), states=StateSlots(8, SnapshotPlaces(4, 40)))
    seq = make_sequence(1, 9, max_new_tokens=40, ignore_eos=True)
    scheduler.add(seq)
    while not seq.num_generated:
        step(scheduler)
    scheduler.commit_step(scheduler.plan_step(None, {1: (7, 8)}), {1: (7, 8, 5)})
    assert seq.num_computed == 12 and seq.spare_slot < 0
    scheduler.commit_step(scheduler.plan_step(None, {1: (7, 8)}), {1: (7, 5)})
    assert seq.num_computed == 12 and seq.spare_slot >= 0
    [row] = scheduler.plan_step().rows
    assert (row.start, row.num_tokens) == (12, 3)


def test_tokens_behind_the_one_that_ends_a_sequence_are_thrown_away() -> None:
    """Proposed ones that were right, too: they are not counted."""
    seq = make_sequence(1, 9, max_new_tokens=3, ignore_eos=True)
    scheduler = make_scheduler([seq])
    step(scheduler)
    plan = scheduler.plan_step(None, {1: (7, 8)})
    [row] = plan.rows
    [update] = scheduler.commit_step(plan, {1: (*row.drafts, 5)})
    assert update.finish_reason == "length" and seq.num_generated == 3 == len(seq.generated_ids)
    assert update.token_ids == (7, 5)[: len(update.token_ids)] and not scheduler.has_work


def test_a_row_has_tokens_and_begins_where_its_sequence_is() -> None:
    scheduler = make_scheduler([make_sequence(1, 9, max_new_tokens=3)])
    plan = scheduler.plan_step()
    with pytest.raises(AssertionError, match="no token was sampled"):
        scheduler.commit_step(plan, {1: ()})


def test_a_prompt_without_an_answer_ends_with_its_last_row() -> None:
    scheduler = make_scheduler([make_sequence(1, 9, max_new_tokens=0)], budget=5)
    assert scheduler.commit_step(scheduler.plan_step(), {}) == ()
    [update] = scheduler.commit_step(scheduler.plan_step(), {})
    assert (update.token_ids, update.finish_reason, update.stop_token_id) == ((), "length", None)
    assert not scheduler.has_work

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Values
from typing import Any

import numpy as np
import pytest
from llm.mixed_load import MixedLoad, make_mixed_engine

from seesay.errors import ErrorCode, RequestError
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import UNPROPOSED, AddedBlocks, DraftCounts, Row, StepPlan
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.sequence import Sequence, SequenceStatus
from seesay.llm.scheduling.state_slots import SnapshotPlaces, StateSlots
from seesay.llm.scheduling.step_commit import SequenceUpdate
from seesay.llm.scheduling.step_policy import StepLoad
from seesay.values import MediaItem, Modality, MultimodalInput

Span = tuple[int, int, int]
"""Start, stop and number of a picture; equal numbers are equal pictures."""


def picture_hash(number: int) -> bytes:
    return number.to_bytes(32, "little")


def make_sequence(
    seq_id: int, num_tokens: int, *pictures: Span, text: int | None = None, waits: bool = False, **params: Any
) -> Sequence:
    """A prompt of `num_tokens` tokens; equal `text` numbers give equal tokens."""
    items = tuple(
        MediaItem(
            modality=Modality.IMAGE,
            span=(start, stop),
            slots=np.arange(start, stop),
            hash=picture_hash(number),
            features={},
            num_units=4 * (stop - start),
        )
        for start, stop, number in pictures
    )
    first = 1000 * (seq_id if text is None else text)
    prompt = MultimodalInput(
        token_ids=np.arange(first, first + num_tokens),
        positions=np.arange(num_tokens),
        next_position=num_tokens,
        items=items,
    )
    chosen = SamplingParams(**({"max_new_tokens": 4} | params))
    return Sequence(seq_id, prompt, chosen, waits_for_tokens=waits)


def make_scheduler(
    sequences: Iterable[Sequence] = (),
    *,
    batch: int = 8,
    budget: int = 64,
    blocks: int = 64,
    block_size: int = 4,
    session_len: int = 100,
    ahead: int = 1000,
    caching: bool = True,
    streamed: int | None = None,
    encoding: int | None = None,
    host: int = 0,
    micro_batches: int = 1,
) -> Scheduler:
    config = SchedulerConfig(
        max_batch_size=batch,
        max_prefill_token_num=budget,
        max_streamed_tokens=streamed,
        max_encoding_tokens=encoding,
        session_len=session_len,
        max_encode_ahead_tokens=ahead,
        num_micro_batches=micro_batches,
    )
    scheduler = Scheduler(config, BlockPool(blocks, block_size, caching, host))
    for seq in sequences:
        scheduler.add(seq)
    return scheduler


def commit(scheduler: Scheduler, plan: StepPlan, token: int = 7) -> tuple[SequenceUpdate, ...]:
    updates = scheduler.commit_step(plan, {row.seq_id: (token,) for row in plan.rows if row.samples})
    scheduler.check_integrity()
    return updates


def step(scheduler: Scheduler, token: int = 7) -> StepPlan:
    plan = scheduler.plan_step()
    commit(scheduler, plan, token)
    return plan


def rows(plan: StepPlan) -> list[tuple[int, int, int]]:
    return [(row.seq_id, row.start, row.num_tokens) for row in plan.rows]


def run_until_idle(scheduler: Scheduler, limit: int = 1000) -> int:
    for count in range(limit):
        if not scheduler.has_work:
            return count
        step(scheduler)
    raise AssertionError("it does not end")


# --- rows -----------------------------------------------------------------------------------------------------------


def test_one_sequence_from_prompt_to_end() -> None:
    seq = make_sequence(1, 10, max_new_tokens=3)
    scheduler = make_scheduler([seq])
    plan = scheduler.plan_step()
    (row,) = plan.rows
    assert (row.start, row.num_tokens, row.samples) == (0, 10, True)
    assert plan.added_blocks == (AddedBlocks(1, (0, 1, 2)),) and [begun.seq_id for begun in plan.begun] == [1]
    (update,) = commit(scheduler, plan, 5)
    assert (update.seq, update.token_ids, update.finish_reason) == (seq, (5,), None)
    assert rows(step(scheduler)) == [(1, 10, 1)]
    plan = scheduler.plan_step()
    (update,) = commit(scheduler, plan)
    assert update.finish_reason == "length" and update.stop_token_id is None
    assert seq.status is SequenceStatus.FINISHED and seq.generated_ids.tolist() == [5, 7, 7]
    assert not scheduler.has_work and scheduler.stats().num_used_kv_blocks == 0
    assert scheduler.plan_step() == StepPlan(ended_ids=(1,))
    assert scheduler.plan_step() == StepPlan()


def test_long_prompts_are_cut_by_the_budget_and_running_answers_go_first() -> None:
    scheduler = make_scheduler([make_sequence(1, 3, max_new_tokens=50)], budget=8)
    step(scheduler)
    scheduler.add(make_sequence(2, 20))
    scheduler.add(make_sequence(3, 2))
    assert rows(step(scheduler)) == [(1, 3, 1), (2, 0, 7)]
    plan = step(scheduler)
    assert rows(plan) == [(1, 4, 1), (2, 7, 7)]
    assert [row.samples for row in plan.rows] == [True, False]
    added = {seq_id: len(block_ids) for seq_id, block_ids in plan.added_blocks}
    assert added == {1: 1, 2: 2}, "blocks for the planned tokens only"
    assert rows(step(scheduler)) == [(1, 5, 1), (2, 14, 6), (3, 0, 1)]
    assert rows(step(scheduler)) == [(1, 6, 1), (2, 20, 1), (3, 1, 1)]


def test_a_short_prompt_behind_a_long_one_takes_what_is_left() -> None:
    scheduler = make_scheduler([make_sequence(1, 10), make_sequence(2, 3)], budget=12)
    assert rows(scheduler.plan_step()) == [(1, 0, 10), (2, 0, 2)]


def test_no_more_tokens_than_the_budget_even_when_more_sequences_run() -> None:
    scheduler = make_scheduler([make_sequence(n, 1, max_new_tokens=5) for n in range(6)], budget=4)
    for _ in range(30):
        assert step(scheduler).num_tokens <= 4
    assert not scheduler.has_work


def test_max_batch_size_limits_running_sequences() -> None:
    scheduler = make_scheduler([make_sequence(n, 2) for n in range(5)], batch=2)
    assert [row.seq_id for row in step(scheduler).rows] == [0, 1]
    assert scheduler.stats().num_waiting == 3
    assert run_until_idle(scheduler) > 0


def test_a_plan_may_follow_before_the_last_one_is_committed() -> None:
    scheduler = make_scheduler([make_sequence(1, 10), make_sequence(2, 20)], budget=16)
    first = scheduler.plan_step()
    second = scheduler.plan_step()
    assert rows(first) == [(1, 0, 10), (2, 0, 6)]
    assert rows(second) == [(1, 10, 1), (2, 6, 14)]
    commit(scheduler, first)
    commit(scheduler, second)
    assert rows(step(scheduler)) == [(1, 11, 1), (2, 20, 1)]


def test_nothing_is_planned_ahead_of_a_length_that_ends_the_answer() -> None:
    scheduler = make_scheduler([make_sequence(1, 10, max_new_tokens=2)])
    first, second = scheduler.plan_step(), scheduler.plan_step()
    assert rows(second) == [(1, 10, 1)] and not scheduler.plan_step().rows
    commit(scheduler, first)
    assert not scheduler.plan_step().rows
    assert commit(scheduler, second)[0].finish_reason == "length"


def test_nothing_is_planned_ahead_of_a_token_that_the_next_one_is_chosen_by() -> None:
    scheduler = make_scheduler([make_sequence(1, 10, logits_processors=(lambda ids, logits: logits,))])
    first = scheduler.plan_step()
    assert not scheduler.plan_step().rows
    commit(scheduler, first)
    assert rows(scheduler.plan_step()) == [(1, 10, 1)]


def test_a_sequence_that_waits_for_its_tokens_is_left_out_alone() -> None:
    waiting = make_sequence(2, 10, waits=True, max_new_tokens=9)
    scheduler = make_scheduler([make_sequence(1, 10, max_new_tokens=9), waiting])
    found, in_flight = [], scheduler.plan_step()
    for _ in range(4):
        ahead = scheduler.plan_step()
        found.append(rows(ahead))
        commit(scheduler, in_flight)
        in_flight = ahead
    assert found == [[(1, 10, 1)], [(1, 11, 1), (2, 10, 1)], [(1, 12, 1)], [(1, 13, 1), (2, 11, 1)]]


def test_a_prompt_of_a_sequence_that_waits_for_tokens_is_planned_ahead() -> None:
    seq = make_sequence(1, 20, waits=True, max_new_tokens=9)
    scheduler = make_scheduler([seq], budget=8)
    assert [rows(scheduler.plan_step()) for _ in range(4)] == [[(1, 0, 8)], [(1, 8, 8)], [(1, 16, 4)], []]


def test_steps_in_different_stages_have_different_answers() -> None:
    """Each stage computes half of the answers, and none begins at a token that is not known yet."""
    scheduler = make_scheduler([make_sequence(i, 4, max_new_tokens=40) for i in range(5)], micro_batches=2)
    step(scheduler)
    earlier = scheduler.plan_step()
    assert len(earlier.rows) == 3
    for _ in range(6):
        later = scheduler.plan_step()
        assert {row.seq_id for row in later.rows} == {*range(5)} - {row.seq_id for row in earlier.rows}
        assert not scheduler.plan_step().rows, "all answers are on their way"
        commit(scheduler, earlier)
        earlier = later
    commit(scheduler, earlier)


def test_chunks_of_a_prompt_are_in_different_stages() -> None:
    scheduler = make_scheduler([make_sequence(0, 90)], budget=32, micro_batches=2)
    plans = [scheduler.plan_step() for _ in range(4)]
    assert [rows(plan) for plan in plans] == [[(0, 0, 32)], [(0, 32, 32)], [(0, 64, 26)], []]
    for plan in plans[:3]:
        commit(scheduler, plan)


def test_a_plan_says_what_changed_and_nothing_else() -> None:
    """Blocks are named once, and a preempted sequence begins again with all of its tokens."""
    old, young = make_sequence(1, 8, max_new_tokens=12), make_sequence(2, 8, max_new_tokens=12)
    scheduler = make_scheduler([old, young], blocks=4, caching=False)
    first = step(scheduler)
    assert [begun.seq_id for begun in first.begun] == [1, 2] and first.ended_ids == ()
    assert first.added_blocks == (AddedBlocks(1, old.block_ids), AddedBlocks(2, young.block_ids))
    plan = step(scheduler)
    assert plan.ended_ids == plan.preempted_ids == (2,) and plan.begun == ()
    assert plan.added_blocks == (AddedBlocks(1, old.block_ids[2:]),)
    for _ in range(3):
        assert step(scheduler) == StepPlan(rows=(Row(1, old.num_computed - 1, 1, True),), is_streamed=False)
    while old.status is not SequenceStatus.FINISHED:
        assert not step(scheduler).begun
    plan = scheduler.plan_step()
    assert plan.ended_ids == (1,)
    (begun,) = plan.begun
    assert begun.token_ids.tolist() == young.token_ids.tolist() and len(begun.token_ids) == 9
    assert begun.num_prompt_tokens == 8
    commit(scheduler, plan)
    assert len(begun.token_ids) == 9, "a plan is a value: it does not grow with its sequence"


def test_plans_have_neither_processors_nor_features() -> None:
    seq = make_sequence(1, 10, (2, 5, 1), logits_processors=(print,), seed=-1)
    scheduler = make_scheduler([seq])
    scheduler.plan_step()
    scheduler.mark_ready(picture_hash(1))
    (begun,) = scheduler.plan_step().begun
    assert not begun.params.logits_processors and begun.params.seed is None and begun.seed == 2**64 - 1
    assert [item.hash for item in begun.items] == [picture_hash(1)] and not hasattr(begun.items[0], "features")


def test_a_token_too_many_is_thrown_away() -> None:
    scheduler = make_scheduler([make_sequence(1, 10, eos_token_ids=(9,)), make_sequence(2, 10)])
    first, second = scheduler.plan_step(), scheduler.plan_step()
    updates = commit(scheduler, first, token=9)
    assert [u.finish_reason for u in updates] == ["stop", None]
    (update,) = commit(scheduler, second, token=5)
    assert update.seq.seq_id == 2 and update.token_ids == (5,)


def test_younger_ones_in_flight_pause_so_that_an_older_one_gets_their_blocks() -> None:
    scheduler = make_scheduler([make_sequence(i, 7, max_new_tokens=9) for i in (1, 2)], blocks=4)
    plans = [scheduler.plan_step(), scheduler.plan_step()]
    assert rows(plans[1]) == [(1, 7, 1), (2, 7, 1)]
    assert not scheduler.plan_step().rows
    commit(scheduler, plans[0])
    assert not scheduler.plan_step().rows
    commit(scheduler, plans[1])
    plan = scheduler.plan_step()
    assert rows(plan) == [(1, 8, 1)] and plan.preempted_ids == (2,)


def test_steps_while_pictures_are_encoded_are_shorter() -> None:
    scheduler = make_scheduler([make_sequence(1, 36), make_sequence(2, 20, (4, 8, 1))], budget=40, encoding=16)
    assert rows(step(scheduler)) == [(1, 0, 16)]  # it asks for the picture
    assert rows(step(scheduler)) == [(1, 16, 16)]
    scheduler.mark_ready(picture_hash(1))
    assert rows(step(scheduler)) == [(1, 32, 4), (2, 0, 20)]


def test_steps_in_which_streamed_answers_go_on_are_shorter() -> None:
    for is_streamed in (True, False):
        scheduler = make_scheduler([make_sequence(1, 10), make_sequence(2, 60)], budget=40, streamed=8)
        scheduler.sequences[1].is_streamed = is_streamed
        assert rows(step(scheduler)) == [(1, 0, 10), (2, 0, 30)]
        assert rows(step(scheduler)) == [(1, 10, 1), (2, 30, 8 if is_streamed else 30)]


# --- ends -----------------------------------------------------------------------------------------------------------


def test_tokens_after_the_stop_are_thrown_away() -> None:
    seq = make_sequence(1, 4, eos_token_ids=(9,), max_new_tokens=10)
    scheduler = make_scheduler([seq])
    (update,) = scheduler.commit_step(scheduler.plan_step(), {1: (5, 9, 6)})
    assert (update.token_ids, update.finish_reason, update.stop_token_id) == ((5, 9), "stop", 9)
    assert scheduler.sequences.get(1) is None


def test_several_sampled_tokens_are_caught_up_with() -> None:
    scheduler = make_scheduler([make_sequence(1, 4, max_new_tokens=10)])
    scheduler.commit_step(scheduler.plan_step(), {1: (5, 6, 7)})
    scheduler.check_integrity()
    assert rows(scheduler.plan_step()) == [(1, 4, 3)]


def test_a_plan_ahead_of_a_jump_begins_with_all_of_its_tokens() -> None:
    seq = make_sequence(1, 4, max_new_tokens=10)
    scheduler = make_scheduler([seq, make_sequence(2, 4, max_new_tokens=10)])
    first = scheduler.plan_step()
    scheduler.announce_forced_tokens(1, 4)
    scheduler.check_integrity()
    second = scheduler.plan_step()
    assert rows(second) == [(1, 4, 4), (2, 4, 1)] and all(row.samples for row in second.rows)
    updates = scheduler.commit_step(first, {1: (5, 6, 7, 8), 2: (5,)})
    scheduler.check_integrity()
    assert [update.token_ids for update in updates] == [(5, 6, 7, 8), (5,)]
    assert (seq.num_pending, seq.num_foretold, scheduler.stats().total_jumped_tokens) == (1, 0, 3)
    assert rows(scheduler.plan_step()) == [(1, 8, 1), (2, 5, 1)]
    commit(scheduler, second)
    assert seq.generated_ids.tolist() == [5, 6, 7, 8, 7]


def test_a_jump_is_computed_within_the_budget_and_never_beyond_an_end() -> None:
    seq = make_sequence(1, 4, max_new_tokens=5, eos_token_ids=(9,))
    scheduler = make_scheduler([seq], budget=3)
    assert rows(step(scheduler)) == [(1, 0, 3)]
    first = scheduler.plan_step()
    scheduler.announce_forced_tokens(1, 4)
    plans = [scheduler.plan_step() for _ in range(2)]
    assert [rows(plan) for plan in plans] == [[(1, 4, 3)], [(1, 7, 1)]]
    assert [plan.rows[0].samples for plan in plans] == [False, True]
    assert not scheduler.plan_step().rows, "one more token is the last one"
    scheduler.commit_step(first, {1: (5, 6, 9, 8)})
    assert seq.finish_reason == "stop" and seq.generated_ids.tolist() == [5, 6, 9]
    for plan in plans:
        assert not commit(scheduler, plan)
    ends = make_sequence(2, 4, max_new_tokens=3)
    scheduler.add(ends)
    step(scheduler)
    last = scheduler.plan_step()
    scheduler.announce_forced_tokens(2, 3)
    assert not scheduler.plan_step().rows
    (update,) = scheduler.commit_step(last, {2: (5, 6, 7)})
    assert update.finish_reason == "length" and update.token_ids == (5, 6, 7)


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused() -> None:
    scheduler = make_scheduler(session_len=10)
    with pytest.raises(RequestError, match=r"10 tokens.* 10 ") as raised:
        scheduler.add(make_sequence(1, 10))
    assert raised.value.code is ErrorCode.CONTEXT_TOO_LONG
    scheduler.add(make_sequence(2, 9))
    assert run_until_idle(scheduler) == 1


@pytest.mark.parametrize("budget", (3, 64))
def test_a_prompt_whose_outputs_alone_are_wanted_may_fill_the_context(budget: int) -> None:
    scheduler = make_scheduler(session_len=10, budget=budget)
    with pytest.raises(RequestError, match=r"11 tokens, but it may have 10 ") as raised:
        scheduler.add(make_sequence(1, 11, max_new_tokens=0))
    assert raised.value.code is ErrorCode.CONTEXT_TOO_LONG
    seq = make_sequence(2, 10, max_new_tokens=0)
    scheduler.add(seq)
    while scheduler.has_work:
        plan = scheduler.plan_step()
        assert plan.rows and not any(row.samples for row in plan.rows)
        updates = scheduler.commit_step(plan, {})
        if scheduler.has_work:
            assert not updates
            scheduler.check_integrity()
    assert updates == (SequenceUpdate(seq=seq, finish_reason="length"),)
    assert seq.num_generated == 0 and scheduler.stats().num_used_kv_blocks == 0


def test_a_prompt_larger_than_the_cache_is_refused_and_an_answer_that_outgrows_it_ends() -> None:
    scheduler = make_scheduler(blocks=3)
    with pytest.raises(RequestError, match=r"13 tokens need 4 KV blocks .* has 3") as raised:
        scheduler.add(make_sequence(1, 13))
    assert raised.value.code is ErrorCode.OUT_OF_MEMORY
    seq = make_sequence(2, 11, max_new_tokens=50)
    scheduler.add(seq)
    step(scheduler)
    (update,) = commit(scheduler, scheduler.plan_step())
    assert update.finish_reason == "error" and update.token_ids == (7,)
    assert isinstance(update.error, RequestError) and update.error.code is ErrorCode.OUT_OF_MEMORY
    assert seq.error is update.error and not scheduler.has_work


def test_a_sequence_may_end_at_any_time_and_only_once() -> None:
    scheduler = make_scheduler([make_sequence(n, 6) for n in range(3)], batch=2)
    plan = scheduler.plan_step()
    assert scheduler.abort(0)
    assert not scheduler.abort(0)
    assert scheduler.finish(2, "stop")
    (update,) = commit(scheduler, plan)
    assert update.seq.seq_id == 1
    assert list(scheduler.sequences) == [1]


# --- order ----------------------------------------------------------------------------------------------------------


def test_the_youngest_is_preempted_and_comes_back_in_its_old_place() -> None:
    old, young = make_sequence(1, 8, max_new_tokens=12), make_sequence(2, 7, max_new_tokens=12)
    scheduler = make_scheduler([old, young], blocks=5, caching=False)
    step(scheduler)
    later = make_sequence(3, 1)
    scheduler.add(later)
    assert rows(step(scheduler)) == [(1, 8, 1), (2, 7, 1)]
    for start in (9, 10, 11):
        plan = step(scheduler)
        assert (rows(plan), plan.preempted_ids) == ([(1, start, 1)], ()), "the younger waits for a block"
    plan = scheduler.plan_step()
    assert (rows(plan), plan.preempted_ids) == ([(1, 12, 1)], (2,))
    assert young.status is SequenceStatus.PREEMPTED and young.num_preemptions == 1 and young.block_ids == ()
    commit(scheduler, plan)
    while old.status is not SequenceStatus.FINISHED:
        assert [row.seq_id for row in step(scheduler).rows] == [1], "nobody passes the one that waits for blocks"
    assert rows(step(scheduler)) == [(2, 0, 9), (3, 0, 1)], "recomputed with its two generated tokens"


def test_what_is_being_computed_is_not_preempted() -> None:
    scheduler = make_scheduler([make_sequence(1, 8), make_sequence(2, 8)], blocks=4)
    plan = scheduler.plan_step()
    commit(scheduler, StepPlan(rows=plan.rows[:1]))
    assert scheduler.plan_step() == StepPlan(), "the first needs a block of the second, which is in flight"
    commit(scheduler, StepPlan(rows=plan.rows[1:]))
    assert scheduler.plan_step().preempted_ids == (2,)


def test_who_is_behind_a_preempted_one_gets_its_own_share() -> None:
    """The second waits for a picture and is preempted for the first; the third, in flight, goes on by one token."""
    sequences = [
        make_sequence(1, 8, max_new_tokens=40),
        make_sequence(2, 16, (8, 16, 1)),
        make_sequence(3, 3, max_new_tokens=40),
    ]
    scheduler = make_scheduler(sequences, budget=8, blocks=9)
    in_flight = scheduler.plan_step()
    while 2 not in in_flight.preempted_ids:
        plan = scheduler.plan_step()
        commit(scheduler, in_flight)
        in_flight = plan
    assert [(row.seq_id, row.num_tokens) for row in in_flight.rows] == [(1, 1), (3, 1)]


def test_a_large_prompt_is_not_starved_by_small_ones_that_keep_coming() -> None:
    scheduler = make_scheduler([make_sequence(n, 8, max_new_tokens=8) for n in range(3)], blocks=12)
    step(scheduler)
    large = make_sequence(99, 40)
    scheduler.add(large)
    for n in range(100, 130):
        scheduler.add(make_sequence(n, 4))
        step(scheduler)
        if large.status is SequenceStatus.FINISHED:
            return
    raise AssertionError("overtaken for 30 steps")


def test_blocks_that_a_started_prompt_will_need_are_not_given_away() -> None:
    scheduler = make_scheduler([make_sequence(1, 16, (8, 12, 1)), make_sequence(2, 12)], budget=8, blocks=6)
    assert rows(step(scheduler)) == [(1, 0, 8)]
    assert step(scheduler).rows == (), "four blocks are free, but two of them will be the first one's"
    scheduler.mark_ready(picture_hash(1))
    assert rows(step(scheduler)) == [(1, 8, 8)]
    assert run_until_idle(scheduler) > 0
    assert scheduler.stats().total_preemptions == 0


def test_a_preempted_sequence_finds_its_blocks_again() -> None:
    old, young = make_sequence(1, 8, max_new_tokens=5), make_sequence(2, 16, max_new_tokens=5)
    scheduler = make_scheduler([old, young], blocks=6)
    step(scheduler)
    assert scheduler.stats().num_used_kv_blocks == 6
    plan = scheduler.plan_step()
    assert plan.preempted_ids == (2,)
    commit(scheduler, plan)
    while old.status is not SequenceStatus.FINISHED:
        step(scheduler)
    assert rows(step(scheduler)) == [(2, 12, 5)], "three of its four full blocks were not needed by the other"
    assert young.num_cached_tokens == 0, "that was no hit of the prompt"


def test_what_a_preempted_sequence_lost_comes_back_from_the_host() -> None:
    old, young = make_sequence(1, 8, max_new_tokens=5), make_sequence(2, 16, max_new_tokens=5)
    scheduler = make_scheduler([old, young], blocks=6, host=2)
    step(scheduler)
    last = young.block_ids[-1]
    plan = step(scheduler)
    assert (plan.preempted_ids, plan.saves, plan.loads) == ((2,), ((last, 0),), ())
    while old.status is not SequenceStatus.FINISHED:
        assert not step(scheduler).loads
    plan = step(scheduler)
    assert rows(plan) == [(2, 16, 1)], "nothing but the token that was sampled"
    assert plan.loads == ((young.block_ids[3], 0),)
    stats = scheduler.stats()
    assert (stats.num_host_kv_blocks, stats.num_used_host_kv_blocks, stats.total_host_kv_loads) == (2, 2, 1)


# --- prefix cache ---------------------------------------------------------------------------------------------------


def test_an_equal_beginning_is_taken_from_the_cache() -> None:
    scheduler = make_scheduler([make_sequence(1, 10, text=5)])
    run_until_idle(scheduler)
    seq = make_sequence(2, 30, text=5)
    scheduler.add(seq)
    assert rows(step(scheduler)) == [(2, 8, 22)]
    assert seq.num_cached_tokens == 8
    stats = scheduler.stats()
    assert (stats.total_prefix_hit_tokens, stats.total_prefix_queried_tokens) == (8, 40)


def test_nobody_finds_blocks_in_which_something_is_wrong() -> None:
    """Those of a sequence that has ended are not known any more: nothing happens."""
    scheduler = make_scheduler([make_sequence(1, 10, text=0, max_new_tokens=8)])
    step(scheduler)
    scheduler.forget_blocks(1)
    scheduler.forget_blocks(99)
    scheduler.add(second := make_sequence(2, 10, text=0))
    run_until_idle(scheduler)
    assert second.num_cached_tokens == 0


def test_generated_tokens_are_found_too() -> None:
    seq = make_sequence(1, 6, max_new_tokens=7)
    scheduler = make_scheduler([seq])
    run_until_idle(scheduler)
    prompt = MultimodalInput(token_ids=seq.token_ids.copy(), positions=np.arange(13), next_position=13)
    scheduler.add(Sequence(2, prompt, SamplingParams()))
    assert rows(scheduler.plan_step()) == [(2, 12, 1)]


def test_a_whole_hit_leaves_one_token_to_compute() -> None:
    scheduler = make_scheduler([make_sequence(1, 8, text=5, max_new_tokens=1)])
    run_until_idle(scheduler)
    scheduler.add(make_sequence(2, 8, text=5))
    assert rows(scheduler.plan_step()) == [(2, 4, 4)]


def test_a_preempted_one_whose_blocks_are_all_found_computes_its_last_tokens() -> None:
    scheduler = make_scheduler([make_sequence(1, 12, text=5, max_new_tokens=1)], budget=2)
    run_until_idle(scheduler)
    again = make_sequence(2, 12, text=5)
    scheduler.add(again)
    assert rows(step(scheduler)) == [(2, 8, 2)]
    scheduler._preemption.preempt(again)
    assert rows(step(scheduler)) == [(2, 8, 2)]


def test_equal_beginnings_are_computed_once() -> None:
    scheduler = make_scheduler([make_sequence(i, 10, text=5) for i in (1, 2, 3)] + [make_sequence(4, 5)])
    assert rows(step(scheduler)) == [(1, 0, 10), (4, 0, 5)]
    assert rows(step(scheduler)) == [(1, 10, 1), (4, 5, 1), (2, 8, 2), (3, 8, 2)]
    assert scheduler.stats().total_prefix_hit_tokens == 16


def test_a_beginning_is_awaited_chunk_by_chunk_and_no_longer_than_somebody_computes_it() -> None:
    scheduler = make_scheduler([make_sequence(i, 14, text=5) for i in (1, 2, 3)], budget=8)
    assert rows(step(scheduler)) == [(1, 0, 8)]
    assert rows(step(scheduler)) == [(1, 8, 6)]  # the others know 8 tokens and wait for the next 4
    scheduler.abort(2)
    scheduler = make_scheduler([make_sequence(i, 14, text=5) for i in (1, 2, 3)], budget=8)
    step(scheduler)
    scheduler.abort(1)
    assert rows(step(scheduler)) == [(2, 8, 6)]
    assert scheduler.stats().num_waiting == 1


@pytest.mark.parametrize(
    "params",
    [{"prompt_logprobs": 2}, {"output_logits": "all"}, {"output_last_hidden_state": "all"}],
)
def test_who_needs_all_outputs_computes_all(params: dict[str, Any]) -> None:
    scheduler = make_scheduler([make_sequence(1, 10, text=5)])
    run_until_idle(scheduler)
    scheduler.add(make_sequence(2, 10, text=5, **params))
    assert rows(scheduler.plan_step()) == [(2, 0, 10)]


def test_another_picture_or_salt_shares_nothing_from_there_on() -> None:
    scheduler = make_scheduler([make_sequence(1, 16, (6, 10, 1), text=5)])
    scheduler.plan_step()
    scheduler.mark_ready(picture_hash(1))
    run_until_idle(scheduler)
    scheduler.add(make_sequence(2, 16, (6, 10, 2), text=5))
    scheduler.plan_step()
    scheduler.mark_ready(picture_hash(2))
    assert rows(step(scheduler)) == [(2, 4, 12)]
    salted = make_sequence(3, 16, text=5)
    salted.cache_salt = b"tenant"
    scheduler.add(salted)
    assert (3, 0, 16) in rows(step(scheduler))


# --- embeddings -----------------------------------------------------------------------------------------------------


def test_pictures_of_all_requests_are_asked_for_at_once() -> None:
    scheduler = make_scheduler([make_sequence(n, 20, (5, 15, n)) for n in range(8)], batch=2)
    plan = scheduler.plan_step()
    assert [(job.seq_id, job.item_index) for job in plan.encode_jobs] == [(n, 0) for n in range(8)]
    assert plan.rows == ()
    assert scheduler.plan_step() == StepPlan(), "each is asked for once"
    scheduler.mark_ready(picture_hash(3))
    assert rows(step(scheduler)) == [(3, 0, 20)]


def test_who_waits_for_a_picture_lets_others_pass() -> None:
    scheduler = make_scheduler([make_sequence(1, 20, (5, 15, 1)), make_sequence(2, 5)], batch=1)
    assert rows(step(scheduler)) == [(2, 0, 5)]
    scheduler.mark_ready(picture_hash(1))
    scheduler.add(make_sequence(3, 5))
    while scheduler.sequences.get(2):
        step(scheduler)
    assert rows(step(scheduler)) == [(1, 0, 20)], "ready, it is the first again"


def test_a_long_text_starts_before_its_picture_is_ready_and_stops_in_front_of_it() -> None:
    scheduler = make_scheduler([make_sequence(1, 30, (20, 25, 1))], budget=8)
    plans = [step(scheduler) for _ in range(4)]
    assert [rows(plan) for plan in plans] == [[(1, 0, 8)], [(1, 8, 8)], [(1, 16, 4)], []]
    assert [len(plan.encode_jobs) for plan in plans] == [1, 0, 0, 0]
    scheduler.mark_ready(picture_hash(1))
    assert rows(step(scheduler)) == [(1, 20, 8)]


def test_an_embedding_is_released_once_when_its_rows_are_computed() -> None:
    scheduler = make_scheduler([make_sequence(1, 20, (2, 6, 1), (8, 12, 2))], budget=10)
    scheduler.plan_step()
    scheduler.mark_ready(picture_hash(1))
    scheduler.mark_ready(picture_hash(2))
    step(scheduler)
    assert scheduler.take_released() == ((1, 0, picture_hash(1)),)
    step(scheduler)
    assert scheduler.take_released() == ((1, 1, picture_hash(2)),)
    run_until_idle(scheduler)
    assert scheduler.take_released() == ()


def test_one_answer_serves_all_who_wait_for_the_same_picture() -> None:
    scheduler = make_scheduler([make_sequence(n, 20, (5, 15, 1)) for n in range(3)])
    assert len(scheduler.plan_step().encode_jobs) == 3
    scheduler.mark_ready(picture_hash(1))
    assert len(step(scheduler).rows) == 3
    assert len(scheduler.take_released()) == 3


def test_a_picture_that_fails_ends_only_those_who_need_it() -> None:
    scheduler = make_scheduler(
        [make_sequence(1, 20, (5, 15, 1)), make_sequence(2, 20, (5, 15, 2)), make_sequence(3, 5)]
    )
    scheduler.plan_step()
    error = RequestError(ErrorCode.INVALID_MEDIA, "broken")
    (update,) = scheduler.mark_failed(picture_hash(1), error)
    assert (update.seq.seq_id, update.finish_reason, update.error) == (1, "error", error)
    assert scheduler.take_released() == ((1, 0, picture_hash(1)),)
    assert sorted(scheduler.sequences) == [2, 3]
    assert scheduler.mark_failed(picture_hash(1), error) == ()
    scheduler.check_integrity()


def test_a_picture_in_the_prefix_cache_is_not_encoded_again() -> None:
    scheduler = make_scheduler([make_sequence(1, 20, (5, 15, 1), text=5)])
    scheduler.plan_step()
    scheduler.mark_ready(picture_hash(1))
    run_until_idle(scheduler)
    scheduler.take_released()
    scheduler.add(make_sequence(2, 24, (5, 15, 1), text=5))
    plan = step(scheduler)
    assert (rows(plan), plan.encode_jobs) == ([(2, 20, 4)], ())
    scheduler.add(make_sequence(3, 14, (5, 13, 1), text=5))
    assert len(scheduler.plan_step().encode_jobs) == 1, "the same picture at another place"


def test_who_waits_for_a_place_asks_only_for_what_the_prefix_cache_lacks() -> None:
    scheduler = make_scheduler([make_sequence(1, 20, (5, 15, 1), text=5)], batch=1)
    scheduler.plan_step()
    scheduler.mark_ready(picture_hash(1))
    run_until_idle(scheduler)
    scheduler.add(make_sequence(2, 8))
    scheduler.add(make_sequence(3, 30, (5, 15, 1), (20, 24, 2), text=5))
    plan = step(scheduler)
    assert rows(plan) == [(2, 0, 8)]
    assert [(job.seq_id, job.item_index) for job in plan.encode_jobs] == [(3, 1)]


def test_the_oldest_exceeds_the_limit_by_its_next_chunk_only() -> None:
    pictures = [(start, start + 10, start) for start in range(5, 65, 12)]
    scheduler = make_scheduler([make_sequence(1, 70, *pictures)], ahead=5, budget=20)
    assert [job.item_index for job in scheduler.plan_step().encode_jobs] == [0, 1]
    scheduler.mark_ready(picture_hash(5))
    scheduler.mark_ready(picture_hash(17))
    plan = step(scheduler)
    assert rows(plan) == [(1, 0, 20)]
    assert [job.item_index for job in plan.encode_jobs] == [2]


def test_a_picture_that_the_cache_covers_in_part_is_still_needed() -> None:
    scheduler = make_scheduler([make_sequence(1, 14, (5, 13, 1), text=5)])
    scheduler.plan_step()
    scheduler.mark_ready(picture_hash(1))
    run_until_idle(scheduler)
    scheduler.add(make_sequence(2, 14, (5, 13, 1), text=5))
    assert len(scheduler.plan_step().encode_jobs) == 1
    scheduler.mark_ready(picture_hash(1))
    assert rows(step(scheduler)) == [(2, 12, 2)]


def test_after_preemption_a_picture_is_asked_for_again_if_its_blocks_are_gone() -> None:
    young = make_sequence(2, 8, (1, 7, 2), max_new_tokens=5)
    scheduler = make_scheduler([make_sequence(1, 8, max_new_tokens=20), young], blocks=5, caching=False)
    step(scheduler)
    scheduler.mark_ready(picture_hash(2))
    plans = [step(scheduler) for _ in range(30)]
    assert young.num_preemptions == 1
    assert [job for plan in plans for job in plan.encode_jobs if job.seq_id == 2]
    scheduler.mark_ready(picture_hash(2))
    run_until_idle(scheduler)
    assert young.finish_reason == "length"
    assert len(scheduler.take_released()) == 2


def test_the_look_ahead_is_bounded_but_never_stops_the_oldest() -> None:
    scheduler = make_scheduler([make_sequence(n, 40, (5, 35, n)) for n in range(4)], ahead=50)
    assert [job.seq_id for job in scheduler.plan_step().encode_jobs] == [0]
    assert scheduler.stats().num_wanted_embedding_rows == 30
    scheduler.mark_ready(picture_hash(0))
    assert scheduler.plan_step().encode_jobs == ()
    scheduler = make_scheduler([make_sequence(n, 40, (5, 35, n)) for n in range(4)], ahead=5)
    served = []
    while scheduler.has_work:
        plan = step(scheduler)
        for job in plan.encode_jobs:
            served.append(job.seq_id)
            scheduler.mark_ready(picture_hash(job.seq_id))
    assert served == [0, 1, 2, 3], "one after the other, each larger than the limit"


def test_an_embedding_that_many_need_counts_once_in_the_look_ahead() -> None:
    questions = [make_sequence(n, 40, (5, 35, 1)) for n in range(6)]
    scheduler = make_scheduler([*questions, make_sequence(9, 40, (5, 35, 2))], ahead=50, budget=500, blocks=100)
    assert [job.seq_id for job in step(scheduler).encode_jobs] == [0, 1, 2, 3, 4, 5]
    assert scheduler.stats().num_wanted_embedding_rows == 30
    scheduler.mark_ready(picture_hash(1))
    assert rows(step(scheduler)) == [(n, 0, 40) for n in range(6)], "at once, though each has tokens of its own before"
    plan = step(scheduler)
    assert [job.seq_id for job in plan.encode_jobs] == [9] and scheduler.stats().num_wanted_embedding_rows == 30
    assert len(scheduler.take_released()) == 6


# --- plans that are lost ----------------------------------------------------------------------------------------------


def test_sequences_go_on_behind_what_was_committed() -> None:
    """Whatever was planned since, jumps included. Runners are told of all of them anew."""
    scheduler = make_scheduler([make_sequence(1, 6, max_new_tokens=10), make_sequence(2, 5, max_new_tokens=10)])
    step(scheduler)
    lost = [scheduler.plan_step()]
    scheduler.announce_forced_tokens(1, 4)
    scheduler.add(make_sequence(3, 7))
    lost.append(scheduler.plan_step())
    assert rows(lost[1]) == [(1, 7, 4), (2, 6, 1), (3, 0, 7)]
    scheduler.abandon(lost)
    scheduler.check_integrity()
    again = scheduler.plan_step()
    assert again.is_fresh and not again.ended_ids and {begun.seq_id for begun in again.begun} == {1, 2, 3}
    assert rows(again) == [(1, 6, 1), (2, 5, 1), (3, 0, 7)]
    assert not scheduler.plan_step().is_fresh


def test_only_some_are_planned() -> None:
    scheduler = make_scheduler([make_sequence(n, 4) for n in range(4)])
    step(scheduler)
    scheduler.add(make_sequence(8, 4, text=1))
    scheduler.add(make_sequence(9, 4, text=2))
    assert rows(scheduler.plan_step({1, 3, 9})) == [(1, 4, 1), (3, 4, 1), (9, 0, 4)], "no others have rows or begin"
    scheduler.check_integrity()


def test_what_a_lost_plan_was_to_load_is_found_by_nobody() -> None:
    """The copies may not have been made: an equal prompt that comes next computes its blocks itself."""
    first = make_sequence(1, 8, text=1, max_new_tokens=1)
    scheduler = make_scheduler([first], blocks=4, host=4)
    step(scheduler)
    other = make_sequence(2, 15, max_new_tokens=1)
    scheduler.add(other)  # takes all blocks: those of the first go to the host
    step(scheduler)
    scheduler.add(make_sequence(3, 9, text=1))
    scheduler.add(make_sequence(4, 9, text=1))
    lost = scheduler.plan_step()
    assert len(lost.loads) == 2 and rows(lost) == [(3, 8, 1)], "the second one waits for the blocks of the first"
    scheduler.check_integrity()
    scheduler.abandon([lost])
    scheduler.check_integrity()
    again = scheduler.plan_step()
    assert not again.loads and rows(again) == [(3, 0, 9)]
    commit(scheduler, again)
    assert rows(scheduler.plan_step()) == [(3, 9, 1), (4, 8, 1)]


def test_what_is_loaded_is_shared_when_it_is_there() -> None:
    first = make_sequence(1, 8, text=1, max_new_tokens=1)
    scheduler = make_scheduler([first], blocks=6, host=4)
    step(scheduler)
    scheduler.add(make_sequence(2, 23, max_new_tokens=1))
    step(scheduler)
    for seq_id in (3, 4, 5):
        scheduler.add(make_sequence(seq_id, 9, text=1))
    plan = scheduler.plan_step()
    assert len(plan.loads) == 2 and rows(plan) == [(3, 8, 1)]
    commit(scheduler, plan)
    second = scheduler.plan_step()
    assert not second.loads and rows(second) == [(3, 9, 1), (4, 8, 1), (5, 8, 1)]
    scheduler.check_integrity()


def test_a_scheduler_that_was_reset_knows_nothing() -> None:
    scheduler = make_scheduler([make_sequence(n, 8, text=1, max_new_tokens=9) for n in range(4)], batch=2, host=4)
    step(scheduler)
    scheduler.plan_step()
    scheduler.reset()
    scheduler.check_integrity()
    stats = scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_used_kv_blocks, stats.num_cached_kv_blocks) == (0, 0, 0, 0)
    scheduler.add(make_sequence(9, 8, text=1))
    plan = scheduler.plan_step()
    assert plan.is_fresh and rows(plan) == [(9, 0, 8)]


# --- everything at once -----------------------------------------------------------------------------------------------


@pytest.mark.every_case
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_ahead": True, "num_host_slots": 8},
        {"draft": 3, "num_states": 6},
        {"num_states": 4, "num_host_slots": 8, "is_ahead": True},
        {"stretch_kind": "switch", "jump": 4, "draft": 2},
        {"stretch_kind": "dynamic", "is_ahead": True, "caching": False},
        {"attends_media": True, "num_host_slots": 6},
        {"media_run": 5, "num_states": 5, "draft": 3, "is_ahead": True},
        {"is_prefix_lm": True, "budget": 30, "num_host_slots": 6},
    ],
)
def test_answers_are_those_of_each_sequence_alone(options: dict[str, Any]) -> None:
    """Whatever shares its blocks, loses them, waits or ends meanwhile: the engine checks all that it reads, and in the
    end nothing is held."""
    totals = []
    for seed in range(3):
        engine = make_mixed_engine(**options)
        MixedLoad(engine, seed).serve(40)
        totals.append(engine.scheduler.stats())
        assert not engine.scheduler.has_work and totals[-1].num_used_kv_blocks == 0
    assert any(each.total_preemptions for each in totals) and any(each.total_prefix_hit_tokens for each in totals)
    assert any(each.total_accepted_tokens for each in totals) is ("draft" in options)


# --- what a scheduler is given ----------------------------------------------------------------------------------------


class ThreeTokens:
    """A policy that allows three prompt tokens, and notes what was observed."""

    def __init__(self) -> None:
        self.observed: list[tuple[int, float]] = []

    def limit_prompt_tokens(self, load: StepLoad) -> int | None:
        return 3

    def observe(self, rows: Values[Row], seconds: float) -> None:
        self.observed.append((len(rows), seconds))


def test_a_policy_limits_steps_and_observes_those_in_which_streamed_answers_go_on() -> None:
    policy = ThreeTokens()
    config = SchedulerConfig(max_batch_size=4, max_prefill_token_num=32, session_len=100)
    scheduler = Scheduler(config, BlockPool(60, 4), policy=policy)
    seq = make_sequence(1, 4)
    seq.is_streamed = True
    scheduler.add(seq)
    for seconds in (1.0, 2.0, 3.0):
        plan = step(scheduler)
        scheduler.observe_step(plan, seconds)
    assert rows(plan) == [(1, 4, 1)] and policy.observed == [(1, 2.0), (1, 3.0)]


@pytest.mark.parametrize(("length", "is_refused"), [(8, False), (9, True)])
def test_a_prompt_whose_tokens_see_each_other_has_to_fit_into_a_step(length: int, is_refused: bool) -> None:
    """Without the beginning of an answer that goes on."""
    config = SchedulerConfig(max_batch_size=4, max_prefill_token_num=8, session_len=100, is_prefix_lm=True)
    scheduler = Scheduler(config, BlockPool(60, 4))
    prompt = MultimodalInput(
        token_ids=np.arange(length + 3), positions=np.arange(length + 3), next_position=length + 3, num_answer_tokens=3
    )
    seq = Sequence(1, prompt, SamplingParams(max_new_tokens=4))
    if not is_refused:
        scheduler.add(seq)
        assert rows(scheduler.plan_step())[0] == (1, 0, 8)
        return
    with pytest.raises(RequestError) as caught:
        scheduler.add(seq)
    assert caught.value.code is ErrorCode.CONTEXT_TOO_LONG and not scheduler.has_work


def test_sequences_behind_what_was_lost_are_known() -> None:
    """Those whose state was lost with a step, until they are computed as far again."""
    config = SchedulerConfig(max_batch_size=4, max_prefill_token_num=8, session_len=100)
    scheduler = Scheduler(config, BlockPool(60, 4), states=StateSlots(8, SnapshotPlaces(4, 40)))
    scheduler.add(make_sequence(1, 20))
    step(scheduler)
    scheduler.abandon([scheduler.plan_step()])
    assert scheduler.is_behind([1]) and scheduler.is_behind([5, 1]) and not scheduler.is_behind([5])
    while scheduler.sequences[1].num_computed < 16:
        assert scheduler.is_behind([1])
        step(scheduler)
    assert not scheduler.is_behind([1])


def test_forced_tokens_are_announced_once_and_for_rows_that_sample() -> None:
    scheduler = make_scheduler([make_sequence(1, 10, max_new_tokens=20), make_sequence(2, 60, max_new_tokens=20)])
    with pytest.raises(AssertionError):
        scheduler.announce_forced_tokens(1, 3)
    plan = scheduler.plan_step()
    with pytest.raises(AssertionError):
        scheduler.announce_forced_tokens(1, 1)
    scheduler.announce_forced_tokens(1, 2)
    with pytest.raises(AssertionError):
        scheduler.announce_forced_tokens(1, 2)
    with pytest.raises(AssertionError):
        scheduler.announce_forced_tokens(2, 2)
    assert [row.samples for row in plan.rows] == [True, False]


def test_those_that_wait_for_something_are_counted_among_those_that_wait() -> None:
    sequences = [make_sequence(1, 10), make_sequence(2, 10, (0, 2, 1)), make_sequence(3, 10), make_sequence(4, 10)]
    scheduler = make_scheduler(sequences, batch=2)
    step(scheduler)
    stats = scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_wanted_embedding_rows) == (2, 2, 2)
    assert scheduler.num_running == 2


def test_a_runner_that_proposes_says_how_many_were_right() -> None:
    seq = make_sequence(1, 9, max_new_tokens=40)
    scheduler = make_scheduler([seq])
    step(scheduler)
    scheduler.commit_step(scheduler.plan_step(None, {1: (UNPROPOSED,) * 5}), {1: (7, 7, 7)}, {1: DraftCounts(4, 2)})
    stats = scheduler.stats()
    assert (stats.total_draft_tokens, stats.total_accepted_tokens) == (4, 2) == (seq.num_drafted, seq.num_accepted)

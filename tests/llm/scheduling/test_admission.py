"""Who of those that wait is started, and how much is looked up for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from llm.scheduling.test_scheduler import make_scheduler, make_sequence, rows, step

from seesay.llm.plans.step_plan import UNPROPOSED
from seesay.llm.scheduling import admission
from seesay.llm.scheduling.scheduler import Scheduler


def count_lookups(scheduler: Scheduler) -> Callable[[], list[int]]:
    """Return what names the sequences that were looked up to be started since the last call."""
    live: Any = scheduler._live
    follow, found = live.try_follow, list[int]()

    def follow_and_note(seq: Any, beginning: Any) -> Any:
        found.append(seq.seq_id)
        return follow(seq, beginning)

    live.try_follow = follow_and_note

    def take() -> list[int]:
        taken = found.copy()
        found.clear()
        return taken

    return take


def test_what_did_not_fit_is_looked_up_again_only_when_there_are_more_blocks() -> None:
    scheduler = make_scheduler([make_sequence(1, 4, max_new_tokens=12), make_sequence(2, 4)], blocks=5, caching=False)
    step(scheduler)
    lookups = count_lookups(scheduler)
    scheduler.add(make_sequence(3, 16))
    assert rows(step(scheduler)) == [(1, 4, 1), (2, 4, 1)]
    assert lookups() == [3]
    for _ in range(2):
        step(scheduler)
        assert lookups() == [], "no block has become free"
    while scheduler.sequences.get(2):
        step(scheduler)
    assert lookups() == []
    step(scheduler)
    assert lookups() == [3], "there are more blocks, but too few"
    step(scheduler)
    assert lookups() == []


def test_another_one_that_is_first_is_looked_up_whatever_did_not_fit_before() -> None:
    scheduler = make_scheduler([make_sequence(1, 4, max_new_tokens=12)], blocks=4, caching=False)
    step(scheduler)
    scheduler.add(make_sequence(2, 16))
    lookups = count_lookups(scheduler)
    step(scheduler)
    assert scheduler.abort(2)
    scheduler.add(make_sequence(3, 4))
    step(scheduler)
    assert lookups() == [2, 3] and scheduler.sequences[3].block_ids


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_plan_looks_at_some_that_must_wait_and_goes_on_if_no_other_plan_follows(
    in_flight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_MAX_BLOCKED", 2)
    scheduler = make_scheduler()
    if in_flight:
        scheduler.add(make_sequence(1, 4, max_new_tokens=1))
        assert rows(scheduler.plan_step()) == [(1, 0, 4)]
    for number in range(2, 7):
        scheduler.add(make_sequence(number, 4, (0, 2, number)))
    lookups = count_lookups(scheduler)
    assert not scheduler.plan_step().rows
    assert lookups() == ([2, 3] if in_flight else [2, 3, 4, 5, 6])


def test_a_plan_that_started_somebody_looks_at_some_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_MAX_BLOCKED", 2)
    pictures = [make_sequence(number, 4, (0, 2, number)) for number in range(2, 7)]
    scheduler = make_scheduler([make_sequence(1, 4), *pictures])
    lookups = count_lookups(scheduler)
    assert rows(scheduler.plan_step()) == [(1, 0, 4)] and lookups() == [1, 2, 3]


@pytest.mark.parametrize("num_overtaking", [1, 3])
def test_the_oldest_is_brought_forward_when_enough_have_passed(
    num_overtaking: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Priorities let all that come later pass."""
    monkeypatch.setattr(admission, "_MAX_OVERTAKING", num_overtaking)
    scheduler = make_scheduler(batch=1)
    begun = []
    oldest = make_sequence(100, 2, max_new_tokens=1)
    oldest.priority = 1
    scheduler.add(oldest)
    for number in range(8):
        seq = make_sequence(number, 2, max_new_tokens=1)
        seq.priority = 0
        scheduler.add(seq)
    for _ in range(9):
        begun += [row.seq_id for row in step(scheduler).rows]
    assert begun.index(100) == num_overtaking
    assert [each for each in begun if each != 100] == list(range(8))


def test_nobody_is_brought_forward_while_all_come_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_MAX_OVERTAKING", 2)
    scheduler = make_scheduler([make_sequence(number, 2, max_new_tokens=1) for number in range(6)], batch=1)
    brought: list[Any] = []
    live: Any = scheduler._live
    live.bring_forward = brought.append
    assert [step(scheduler).rows[0].seq_id for _ in range(6)] == list(range(6)) and not brought


def test_each_sequence_counts_once_in_the_hit_rate() -> None:
    scheduler = make_scheduler([make_sequence(1, 8, text=0)])
    step(scheduler)
    scheduler.add(make_sequence(2, 10, text=0))
    step(scheduler)
    stats = scheduler.stats()
    assert (stats.total_prefix_queried_tokens, stats.total_prefix_hit_tokens) == (18, 8)
    seq = scheduler.sequences[2]
    scheduler._preemption.preempt(seq)
    step(scheduler)
    stats = scheduler.stats()
    assert (stats.total_prefix_queried_tokens, stats.total_prefix_hit_tokens, seq.num_cached_tokens) == (18, 8, 8)


@pytest.mark.parametrize("are_proposed_by_the_step", [True, False])
def test_a_prompt_begins_beside_rows_whose_step_proposes_by_itself(are_proposed_by_the_step: bool) -> None:
    """It does so without prompts alone, so that what it may propose takes nothing from them; else a prompt that comes
    while few tokens are left for one would wait until some answer ends."""
    running = [make_sequence(seq_id, 2, max_new_tokens=40) for seq_id in (1, 2)]
    scheduler = make_scheduler(running, budget=22)
    step(scheduler)
    scheduler.add(make_sequence(3, 12))
    proposed = ((UNPROPOSED if are_proposed_by_the_step else 5),) * 15
    plan = scheduler.plan_step(drafts={1: proposed, 2: proposed})
    first, second, *_ = plan.rows
    if are_proposed_by_the_step:
        assert first.drafts == second.drafts == proposed and rows(plan)[2:] == [(3, 0, 12)]
    else:
        assert first.drafts == proposed[:10]
        assert second.drafts == () and rows(plan)[2:] == [(3, 0, 10)], "these are tokens of the step"


def test_a_prompt_goes_on_beside_answers_however_much_these_propose() -> None:
    """The time of a step leaves few tokens for it; proposed ones take those that the time is not for."""
    answers = [make_sequence(seq_id, 2, max_new_tokens=40) for seq_id in range(1, 6)]
    for seq in answers:
        seq.is_streamed = True
    scheduler = make_scheduler(answers, streamed=8, budget=100)
    step(scheduler)
    scheduler.add(make_sequence(9, 40))
    proposed = (5,) * 15
    for start in range(0, 40, 8):
        plan = scheduler.plan_step(drafts=dict.fromkeys(range(1, 6), proposed))
        assert [row.drafts for row in plan.rows[:5]] == 5 * [proposed]
        assert rows(plan)[5:] == [(9, start, 8)]
        scheduler.commit_step(plan, {row.seq_id: (7,) for row in plan.rows if row.samples})


def test_nobody_begins_for_an_owner_that_just_lost_blocks() -> None:
    """Although one with a smaller place needs fewer than are left: it begins with the next step."""
    sequences = [make_sequence(1, 4, max_new_tokens=40), make_sequence(2, 9, max_new_tokens=40)]
    scheduler = make_scheduler(sequences, blocks=4, caching=False)
    step(scheduler)
    small = make_sequence(3, 3)
    small.priority = -1
    scheduler.add(small)
    plan = step(scheduler)
    assert plan.preempted_ids == (2,) and rows(plan) == [(1, 4, 1)]
    assert rows(step(scheduler)) == [(1, 5, 1), (3, 0, 3)]


def test_blocks_that_are_promised_are_not_given_to_others() -> None:
    """Those that started prompts still need, in this step and in those before."""
    scheduler = make_scheduler(budget=8, blocks=10, caching=False)
    scheduler.add(make_sequence(1, 24))
    scheduler.add(make_sequence(2, 20))
    scheduler.add(make_sequence(3, 4))
    assert rows(step(scheduler)) == [(1, 0, 8)]
    assert rows(step(scheduler)) == [(1, 8, 8)]
    assert rows(step(scheduler)) == [(1, 16, 8)]
    assert rows(step(scheduler)) == [(1, 24, 1)]
    assert not scheduler.sequences[2].block_ids and not scheduler.sequences[3].block_ids, "it is not passed"


@pytest.mark.parametrize(("length", "begins"), [(16, True), (17, False)])
def test_one_begins_where_all_its_known_tokens_have_room(length: int, begins: bool) -> None:
    """Four of five blocks are free. Cached ones that nobody uses are counted as free, and are taken with those that
    it needs anew."""
    for caching in (False, True):
        scheduler = make_scheduler([make_sequence(1, 1, max_new_tokens=40)], blocks=5, caching=caching)
        step(scheduler)
        scheduler.add(make_sequence(2, 8, max_new_tokens=1))
        step(scheduler)
        assert sorted(scheduler.sequences) == [1]
        scheduler.add(make_sequence(3, length, text=2))
        assert [row.seq_id for row in scheduler.plan_step().rows] == ([1, 3] if begins else [1])
        assert scheduler._admission.lacks_blocks is not begins


def test_a_sequence_begins_alone_whatever_it_needs() -> None:
    """Nobody would give back blocks for it."""
    scheduler = make_scheduler([make_sequence(1, 20)], blocks=5, caching=False, budget=8)
    assert rows(scheduler.plan_step()) == [(1, 0, 8)]


def test_owners_use_what_others_cannot() -> None:
    """One whose picture is not there leaves its tokens to the next one of the other."""
    scheduler = make_scheduler(budget=16)
    for seq in (make_sequence(1, 40, (0, 2, 1)), make_sequence(2, 40), make_sequence(3, 40)):
        seq.owner = "waits" if seq.seq_id == 1 else "goes on"
        scheduler.add(seq)
    assert rows(scheduler.plan_step()) == [(2, 0, 8), (3, 0, 8)]


def test_only_those_that_are_named_begin_whoever_they_belong_to() -> None:
    sequences = [make_sequence(seq_id, 20) for seq_id in range(4)]
    for seq, owner in zip(sequences, "abab", strict=True):
        seq.owner = owner
    scheduler = make_scheduler(sequences, budget=60)
    assert rows(scheduler.plan_step(only={2, 3})) == [(2, 0, 20), (3, 0, 20)]
    for seq, owner in zip(sequences := [make_sequence(seq_id, 20) for seq_id in range(4)], "abab", strict=True):
        seq.owner = owner
    scheduler = make_scheduler(sequences, budget=40)
    assert rows(scheduler.plan_step(only={0, 2})) == [(0, 0, 20), (2, 0, 20)], "no other owner may use what is left"
    scheduler = make_scheduler([make_sequence(seq_id, 20) for seq_id in range(4)], budget=30)
    assert rows(scheduler.plan_step(only={1, 3})) == [(1, 0, 20), (3, 0, 10)]


def test_a_reset_forgets_what_did_not_fit() -> None:
    scheduler = make_scheduler([make_sequence(1, 4, max_new_tokens=40)], blocks=4, caching=False)
    step(scheduler)
    scheduler.add(make_sequence(2, 16))
    step(scheduler)
    lacked = scheduler._admission.lacks_blocks
    scheduler.reset()
    assert (lacked, scheduler._admission.lacks_blocks) == (True, False)
    scheduler.add(make_sequence(2, 12))
    assert rows(step(scheduler)) == [(2, 0, 12)]


def test_a_plan_looks_up_some_cached_blocks_only_if_another_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has started somebody; the next plan goes on with those behind."""
    monkeypatch.setattr(admission, "_MAX_FOUND_BLOCKS", 4)
    scheduler = make_scheduler([make_sequence(1, 20, text=0, max_new_tokens=1)])
    step(scheduler)
    for seq_id in range(2, 6):
        scheduler.add(make_sequence(seq_id, 12, text=0))
    lookups = count_lookups(scheduler)
    assert len(scheduler.plan_step().rows) == 2 and lookups() == [2, 3]
    assert [row.seq_id for row in scheduler.plan_step().rows] == [2, 3, 4, 5]


def test_what_begins_in_a_step_is_promised_the_rest_of_its_blocks() -> None:
    """Each owner has eight tokens of the step; the first one needs three blocks more, and one is left."""
    scheduler = make_scheduler(budget=16, blocks=6, caching=False)
    for seq_id, (length, owner) in enumerate(((20, "a"), (12, "b"))):
        seq = make_sequence(seq_id, length)
        seq.owner = owner
        scheduler.add(seq)
    assert rows(scheduler.plan_step()) == [(0, 0, 8)]


def test_a_plan_finds_32_that_wait_while_another_follows() -> None:
    scheduler = make_scheduler([make_sequence(1, 4)], batch=64)
    assert rows(scheduler.plan_step()) == [(1, 0, 4)]
    for number in range(2, 50):
        scheduler.add(make_sequence(number, 4, (0, 2, number)))
    lookups = count_lookups(scheduler)
    scheduler.plan_step()
    assert len(lookups()) == 32


@pytest.mark.parametrize(("length", "num_begun"), [(2048, 3), (2049, 2)])
def test_a_plan_looks_up_4096_cached_blocks_while_another_follows(length: int, num_begun: int) -> None:
    scheduler = make_scheduler(block_size=1, blocks=8000, budget=8000, session_len=3000)
    scheduler.add(make_sequence(1, 2049, text=0, max_new_tokens=1))
    step(scheduler)
    for seq_id, num_tokens in ((2, 2049), (3, length), (4, 2049)):
        scheduler.add(make_sequence(seq_id, num_tokens, text=0))
    assert len(scheduler.plan_step().rows) == num_begun


def test_the_oldest_is_brought_forward_after_eight() -> None:
    scheduler = make_scheduler(batch=1)
    for number in range(12):
        seq = make_sequence(number, 2, max_new_tokens=1)
        seq.priority = number == 0
        scheduler.add(seq)
    assert [step(scheduler).rows[0].seq_id for _ in range(10)] == [*range(1, 9), 0, 9]

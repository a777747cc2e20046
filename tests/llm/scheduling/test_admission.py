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

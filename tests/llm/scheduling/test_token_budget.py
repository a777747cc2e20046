"""What a policy is told about the next step."""

from __future__ import annotations

from collections.abc import Sequence as Values

import pytest
from llm.scheduling.test_scheduler import make_scheduler, make_sequence, rows, step

from seesay.llm.plans.step_plan import Row
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.step_policy import StepLoad, WaitingPrompt


class Noting:
    """A policy that notes the decode rows of each step, the tokens that these attend to, and whether somebody reads
    along or pictures are encoded. limit: the prompt tokens that it allows."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.flags: list[tuple[bool, bool]] = []
        self.loads: list[tuple[int, int]] = []
        self.prompts: list[list[WaitingPrompt]] = []

    def limit_prompt_tokens(self, load: StepLoad) -> int | None:
        self.loads.append((load.num_decode_rows, load.num_decode_context))
        self.flags.append((load.is_streamed, load.is_encoding))
        self.prompts.append([*load.prompts])
        return self.limit

    def observe(self, rows: Values[Row], seconds: float) -> None:
        pass


def test_a_token_attends_to_itself_and_to_all_before() -> None:
    policy = Noting()
    config = SchedulerConfig(max_batch_size=4, max_prefill_token_num=64, session_len=100)
    scheduler = Scheduler(config, BlockPool(40, 4), policy=policy)
    for seq_id, length in ((1, 9), (2, 20)):
        scheduler.add(make_sequence(seq_id, length, max_new_tokens=4))
    for _ in range(3):
        plan = scheduler.plan_step()
        scheduler.commit_step(plan, {row.seq_id: (7,) for row in plan.rows})
    assert policy.loads == [(0, 0), (2, 10 + 21), (2, 11 + 22)]


def test_prompts_are_those_that_a_step_could_compute() -> None:
    """Of those that run, then of those that wait, up to a picture that is not there. How long they have waited."""
    policy, now_s = Noting(), 100.0
    config = SchedulerConfig(max_batch_size=2, max_prefill_token_num=8, session_len=100)
    scheduler = Scheduler(config, BlockPool(60, 4), policy=policy, clock=lambda: now_s)
    scheduler.add(make_sequence(1, 20, (14, 16, 1)))
    now_s += 1
    scheduler.add(make_sequence(2, 30))
    scheduler.add(make_sequence(3, 12, (0, 2, 2)))
    scheduler.add(make_sequence(4, 12, (9, 11, 3)))
    for _ in range(2):
        plan = scheduler.plan_step()
        scheduler.commit_step(plan, {})
        now_s += 2
    first, second = policy.prompts
    assert first == [(0, 14, 1.0), (0, 30, 0.0), (0, 9, 0.0)]
    assert second[0] == (8, 6, 3.0) and (0, 30, 2.0) in second


def test_what_is_known_of_the_running_answers() -> None:
    """No more rows of one token than a step has, whether somebody reads along, and whether pictures are encoded."""
    policy = Noting()
    config = SchedulerConfig(max_batch_size=8, max_prefill_token_num=3, session_len=100)
    scheduler = Scheduler(config, BlockPool(40, 4), policy=policy)
    answers = [make_sequence(seq_id, 1, max_new_tokens=40) for seq_id in range(5)]
    for seq in answers:
        scheduler.add(seq)
    for _ in range(3):
        step(scheduler)
    policy.flags.clear()
    step(scheduler)
    assert policy.loads[-1][0] == 3 and policy.flags == [(False, False)]
    answers[0].is_streamed = True
    step(scheduler)
    answers[0].is_streamed = False
    scheduler.add(make_sequence(9, 4, (0, 2, 1)))
    step(scheduler)
    assert policy.flags == [(False, False), (True, False), (False, True)]


def test_tokens_that_the_last_commit_brought_have_not_waited() -> None:
    """Those of a prompt that is computed again have, and one that stands before its picture is not there."""
    policy, now_s = Noting(), 100.0
    config = SchedulerConfig(max_batch_size=4, max_prefill_token_num=32, session_len=100)
    scheduler = Scheduler(config, BlockPool(60, 4, False), policy=policy, clock=lambda: now_s)
    scheduler.add(make_sequence(1, 9, max_new_tokens=40))
    scheduler.add(make_sequence(2, 40, (32, 34, 1)))
    plan = scheduler.plan_step()
    scheduler.commit_step(plan, {1: (7, 7, 7)})
    now_s += 5
    plan = scheduler.plan_step()
    assert policy.prompts[-1] == [(9, 3, 0.0), (23, 9, 5.0)]
    scheduler.commit_step(plan, {1: (7,)})
    scheduler.plan_step()
    assert policy.prompts[-1] == []


@pytest.mark.parametrize("limit", [0, 1])
def test_a_policy_allows_a_token_at_least(limit: int) -> None:
    policy = Noting(limit)
    config = SchedulerConfig(max_batch_size=4, max_prefill_token_num=32, session_len=100)
    scheduler = Scheduler(config, BlockPool(60, 4), policy=policy)
    scheduler.add(make_sequence(1, 9))
    if limit:
        assert rows(scheduler.plan_step()) == [(1, 0, 1)]
    else:
        with pytest.raises(AssertionError, match="allows 0 prompt tokens"):
            scheduler.plan_step()


def test_proposed_tokens_leave_half_of_its_tokens_to_a_prompt() -> None:
    """A step of 30 tokens has seven for prompts beside two answers, and 21 for which there is no time while somebody
    waits. Proposed ones take these, and three of the seven."""
    config = SchedulerConfig(max_batch_size=4, max_prefill_token_num=30, session_len=100)
    scheduler = Scheduler(config, BlockPool(60, 4), policy=Noting(7))
    for seq_id in (1, 2):
        scheduler.add(make_sequence(seq_id, 2, max_new_tokens=60))
    step(scheduler)
    scheduler.add(make_sequence(3, 12))
    plan = scheduler.plan_step(drafts={1: (5,) * 15, 2: (5,) * 15})
    assert rows(plan) == [(1, 2, 16), (2, 2, 10), (3, 0, 4)]


def test_proposed_tokens_leave_half_of_the_step_where_nothing_limits_prompts() -> None:
    scheduler = make_scheduler([make_sequence(1, 2, max_new_tokens=60)], budget=12)
    step(scheduler)
    scheduler.add(make_sequence(3, 12))
    assert rows(scheduler.plan_step(drafts={1: (5,) * 15})) == [(1, 2, 6), (3, 0, 6)]


def add_for(scheduler: Scheduler, owner: str, seq_id: int, length: int) -> None:
    seq = make_sequence(seq_id, length)
    seq.owner = owner
    scheduler.add(seq)


def test_owners_divide_the_tokens_of_a_step() -> None:
    """Those whose prompts are running, and those that may begin: one that needs fewer leaves the rest to others."""
    scheduler = make_scheduler(budget=16)
    add_for(scheduler, "a", 1, 60)
    assert rows(step(scheduler)) == [(1, 0, 16)]
    add_for(scheduler, "b", 2, 5)
    assert rows(step(scheduler)) == [(1, 16, 11), (2, 0, 5)]
    add_for(scheduler, "c", 3, 40)
    assert rows(step(scheduler)) == [(1, 27, 8), (2, 5, 1), (3, 0, 7)]


@pytest.mark.parametrize(("batch", "shares"), [(2, [8, 8]), (3, [6, 5, 5])])
def test_only_owners_that_may_begin_have_a_share(batch: int, shares: list[int]) -> None:
    scheduler = make_scheduler(budget=16, batch=batch)
    add_for(scheduler, "a", 1, 60)
    step(scheduler)
    add_for(scheduler, "b", 2, 40)
    add_for(scheduler, "c", 3, 40)
    assert [row.num_tokens for row in step(scheduler).rows] == shares

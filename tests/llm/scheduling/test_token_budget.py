"""What a policy is told about the next step."""

from __future__ import annotations

from collections.abc import Sequence as Values

from llm.scheduling.test_scheduler import make_sequence

from seesay.llm.plans.step_plan import Row
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.step_policy import StepLoad, WaitingPrompt


class Noting:
    """A policy that notes the decode rows of each step, and the tokens that these attend to."""

    def __init__(self) -> None:
        self.loads: list[tuple[int, int]] = []
        self.prompts: list[list[WaitingPrompt]] = []

    def limit_prompt_tokens(self, load: StepLoad) -> int | None:
        self.loads.append((load.num_decode_rows, load.num_decode_context))
        self.prompts.append([*load.prompts])
        return None

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

"""What a policy is told about the next step."""

from __future__ import annotations

from collections.abc import Sequence as Values

from llm.scheduling.test_scheduler import make_sequence

from seesay.llm.plans.step_plan import Row
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.step_policy import StepLoad


class Noting:
    """A policy that notes the decode rows of each step, and the tokens that these attend to."""

    def __init__(self) -> None:
        self.loads: list[tuple[int, int]] = []

    def limit_prompt_tokens(self, load: StepLoad) -> int | None:
        self.loads.append((load.num_decode_rows, load.num_decode_context))
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

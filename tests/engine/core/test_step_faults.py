"""How an engine goes on behind a failed step: which requests end, which rows are tried, when it is given up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from noted_device import noted_device

from seesay.engine.core.step_faults import EngineLostError, StepFaults
from seesay.engine.core.step_pipeline import StepFailedError
from seesay.engine.core.suspects import Suspects
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import BlockCopy, CopiedBlock, Row, StepPlan
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.sequence import Sequence
from seesay.values import MultimodalInput

NEVER = 1000


class Parts:
    """A scheduler with two sequences, and the requests that ended."""

    def __init__(self) -> None:
        config = SchedulerConfig(max_batch_size=4, max_prefill_token_num=32, session_len=40)
        self.scheduler = Scheduler(config, BlockPool(20, 4))
        for seq_id in (1, 2):
            prompt = MultimodalInput(token_ids=np.arange(6) + seq_id, positions=np.arange(6), next_position=6)
            self.scheduler.add(Sequence(seq_id, prompt, SamplingParams(max_new_tokens=5)))
        self.suspects = Suspects()
        self.ended: list[int] = []
        self.faults = StepFaults(self.scheduler, self.suspects, lambda seq_id, error: self.ended.append(seq_id))
        self.runner: Any = SimpleNamespace(device="cpu", check_device=lambda: None)

    def fail(self, plan: StepPlan, error: BaseException | None = None) -> None:
        self.faults.recover(StepFailedError(plan, error or ValueError("broken")), self.runner)


def make_plan(*seq_ids: int, **moves: Any) -> StepPlan:
    return StepPlan(rows=tuple(Row(seq_id, 0, 6, True) for seq_id in seq_ids), **moves)


def test_the_rows_of_a_failed_step_are_halved_until_one_fails_alone() -> None:
    parts = Parts()
    parts.fail(parts.scheduler.plan_step())
    assert parts.suspects.group == frozenset({1}) and not parts.ended
    parts.fail(parts.scheduler.plan_step(only={1}))
    assert parts.ended == [1] and parts.suspects.group == frozenset({2})
    plan = parts.scheduler.plan_step(only={2})
    parts.scheduler.commit_step(plan, {2: (7,)})
    parts.faults.pass_group(plan, {2})
    assert parts.suspects.group is None


@pytest.mark.parametrize(
    "moves",
    [{"saves": (BlockCopy(0, 0),)}, {"loads": (BlockCopy(0, 0),)}, {"copies": (CopiedBlock(0, 1),)}],
    ids=["saves", "loads", "copies"],
)
def test_a_row_is_tried_again_where_copies_may_have_failed(moves: dict[str, Any]) -> None:
    parts = Parts()
    parts.faults._scheduler = SimpleNamespace(abandon=lambda plans: None)  # type: ignore[assignment]
    parts.fail(make_plan(1, **moves))
    assert parts.suspects.group == frozenset({1}) and not parts.ended
    parts.fail(make_plan(1))
    assert parts.ended == [1]


def test_a_group_that_is_not_where_it_failed_before_has_not_passed() -> None:
    """Its rows come in chunks again; a step without rows says nothing against it."""
    parts = Parts()
    behind: set[int] = {1}
    parts.faults._scheduler = SimpleNamespace(  # type: ignore[assignment]
        is_behind=lambda seq_ids: bool(behind & set(seq_ids))
    )
    for plan, group, has_passed in (
        (make_plan(1), {1}, False),
        (StepPlan(), {1}, True),
        (make_plan(2), {2}, True),
        (make_plan(1), None, True),
    ):
        parts.suspects.split([1])
        parts.faults.pass_group(plan, group)
        assert (parts.suspects.group is None) == has_passed
        parts.suspects.clear()


def test_one_failure_after_another_ends_the_engine() -> None:
    """Each commit, and each request that ends for it, begins the count anew."""
    parts = Parts()
    num_failed = 0
    with pytest.raises(EngineLostError, match="one step after another fails"):
        for _ in range(NEVER):
            parts.fail(make_plan())
            num_failed += 1
    assert num_failed == 64, "halves of the largest step are found long before"
    parts = Parts()
    for number in range(3 * num_failed):
        if number % num_failed == num_failed - 1:
            parts.fail(make_plan(1)) if number < 2 * num_failed else parts.faults.note_commit()
        else:
            parts.fail(make_plan())


def test_a_device_that_is_lost_ends_the_engine() -> None:
    def check_device() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    parts = Parts()
    parts.runner.check_device = check_device
    with pytest.raises(EngineLostError, match="cpu failed: RuntimeError: an illegal memory access"):
        parts.fail(make_plan(1))
    assert not parts.ended


def test_memory_that_a_failed_step_held_is_given_back(tmp_path: Path) -> None:
    """That of its tensors, too, which the traceback of the error refers to."""
    parts = Parts()
    with noted_device(tmp_path) as (device, calls):
        parts.runner.device = device
        parts.fail(make_plan(1))
        assert calls == []
        try:
            raise torch.OutOfMemoryError("no memory")
        except torch.OutOfMemoryError as error:
            parts.fail(make_plan(2), error)
            assert error.__traceback__ is None
        assert calls == ["release cached memory"] and parts.ended == [1, 2]


def test_a_loop_begins_anew_only_so_often() -> None:
    parts = Parts()
    for _ in range(2):
        for _ in range(3):
            parts.faults.note_restart()
        with pytest.raises(EngineLostError, match="again and again"):
            parts.faults.note_restart()
        parts.faults.note_commit()

"""What a step costs depends on what runs, not on how many sequences wait: calls are counted, no time is measured."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from call_counts import count_calls
from llm.scheduling.test_scheduler import make_sequence, picture_hash

from seesay.llm.plans.block_key import BlockKey
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.prefix import make_block_key
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.sequence import Sequence
from seesay.values import MultimodalInput

BLOCK_SIZE = 4


def make_text(seq_id: int, num_tokens: int, *, owner: int = 0, text: int | None = None, answer: int = 4) -> Sequence:
    first = 10_000 * (seq_id if text is None else text)
    prompt = MultimodalInput(
        token_ids=np.arange(first, first + num_tokens), positions=np.arange(num_tokens), next_position=num_tokens
    )
    return Sequence(seq_id, prompt, SamplingParams(max_new_tokens=answer), owner=owner)


def make_scheduler(*, batch: int = 8, budget: int = 64, ahead: int = 64) -> Scheduler:
    config = SchedulerConfig(
        max_batch_size=batch, max_prefill_token_num=budget, session_len=4000, max_encode_ahead_tokens=ahead
    )
    return Scheduler(config, BlockPool(4000, BLOCK_SIZE))


def commit(scheduler: Scheduler, plan: StepPlan) -> None:
    scheduler.commit_step(plan, {row.seq_id: (7,) for row in plan.rows if row.samples})


def count_steps(scheduler: Scheduler, num_steps: int) -> int:
    """The most calls of one of the next steps, plan and commit."""

    def step() -> None:
        commit(scheduler, scheduler.plan_step())

    return max(count_calls(step) for _ in range(num_steps))


def add_texts(scheduler: Scheduler, num_waiting: int) -> None:
    """Of one owner."""
    for n in range(num_waiting):
        scheduler.add(make_text(100 + n, 32))


def add_owners(scheduler: Scheduler, num_waiting: int) -> None:
    """Of as many owners as sequences, each second one urgent."""
    for n in range(num_waiting):
        scheduler.add(make_text(100 + n, 32, owner=n))


def add_equal_texts(scheduler: Scheduler, num_waiting: int) -> None:
    """Equal prompts of a few owners."""
    for n in range(num_waiting):
        scheduler.add(make_text(100 + n, 32, owner=n % 5, text=1))


def add_equal_pictures(scheduler: Scheduler, num_waiting: int) -> None:
    """All with the same picture."""
    for n in range(num_waiting):
        scheduler.add(make_sequence(100 + n, 32, (4, 20, 1)))


def add_pictures(scheduler: Scheduler, num_waiting: int) -> None:
    """Each with a picture of its own."""
    for n in range(num_waiting):
        scheduler.add(make_sequence(100 + n, 32, (4, 20, n)))


LOADS = (add_texts, add_owners, add_equal_texts, add_equal_pictures, add_pictures)


@pytest.mark.parametrize("num_places", [8, 12], ids=["full", "with room"])
@pytest.mark.parametrize("add_load", LOADS)
def test_a_step_costs_the_same_however_many_wait(add_load: Callable[[Scheduler, int], None], num_places: int) -> None:
    """Eight answers go on. Places: none is free, or those that come fill the others."""

    def measure(num_waiting: int) -> int:
        scheduler = make_scheduler(batch=num_places)
        for n in range(8):
            scheduler.add(make_text(n, 8, answer=200))
        commit(scheduler, scheduler.plan_step())
        add_load(scheduler, num_waiting)
        most = count_steps(scheduler, 20)
        scheduler.check_integrity()
        return most

    few, many = measure(300), measure(3000)
    assert many <= 1.5 * few, (few, many)  # sorted lists: a logarithm


def test_a_picture_or_a_beginning_that_many_wait_for_wakes_few_of_them_in_a_step() -> None:
    """Those that are woken are looked at in the order in which they came, until all of them have begun."""

    def measure(num_waiting: int) -> int:
        scheduler = make_scheduler(batch=12, ahead=100_000)
        scheduler.add(make_text(0, 8, answer=3000))
        add_equal_texts(scheduler, num_waiting)
        for n in range(num_waiting):
            scheduler.add(make_sequence(100_000 + n, 32, (4, 20, 1)))
        while scheduler._live.waiting or scheduler._live.needs._waiting:  # all are found to wait, some begin
            commit(scheduler, scheduler.plan_step())
            assert len(scheduler.sequences) > 1
        scheduler.mark_ready(picture_hash(1))
        most = count_steps(scheduler, 20)
        begun: dict[int, None] = {}
        while len(scheduler.sequences) > 1:
            plan = scheduler.plan_step()
            begun.update(dict.fromkeys(seq.seq_id for seq in plan.begun if seq.seq_id >= 100_000))
            commit(scheduler, plan)
            scheduler.check_integrity()
        assert all(b - a < 200 for a, b in zip(begun, [*begun][1:]))
        return most

    few, many = measure(300), measure(1200)
    assert many <= 1.5 * few, (few, many)  # sorted lists: a logarithm


def test_no_step_hashes_a_prompt_and_equal_ones_are_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    num_hashed = 0

    def make_and_count(parent: bytes, token_ids: np.ndarray, items: tuple[object, ...], start: int) -> BlockKey:
        nonlocal num_hashed
        num_hashed += len(token_ids) == BLOCK_SIZE
        return make_block_key(parent, token_ids, items, start)  # type: ignore[arg-type]

    monkeypatch.setattr("seesay.llm.scheduling.prefix.make_block_key", make_and_count)
    scheduler = make_scheduler(budget=1000)
    sequences = [make_text(n, 2001, owner=n % 3, text=1, answer=2) for n in range(30)]
    for seq in sequences:
        scheduler.prepare(seq)
    assert num_hashed == 500
    for seq in sequences:
        scheduler.add(seq)
    for _ in range(20):
        commit(scheduler, scheduler.plan_step())
    assert scheduler.stats().total_prefix_hit_tokens >= 2000 and num_hashed == 500

"""What the scheduler tells a policy about a step, and what it does with the answer."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from seesay.llm.block_pool import BlockPool
from seesay.llm.sampling_params import SamplingParams
from seesay.llm.scheduler import Scheduler, SchedulerConfig
from seesay.llm.sequence import Sequence
from seesay.llm.step_plan import StepPlan
from seesay.llm.step_policy import FixedChunks, StepLoad, WaitingPrompt
from seesay.values import MediaItem, Modality, MultimodalInput


@dataclass
class Recorder:
    """A policy that keeps what it is asked, and answers with `limits` in turn, then with the last one for ever."""

    limits: list[int | None]
    loads: list[StepLoad] = field(default_factory=list)
    prompts: list[list[WaitingPrompt]] = field(default_factory=list)

    def limit_prompt_tokens(self, load: StepLoad) -> int | None:
        self.loads.append(load)
        self.prompts.append(list(load.prompts))
        return self.limits.pop(0) if len(self.limits) > 1 else self.limits[0]


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def make_sequence(
    seq_id: int,
    num_tokens: int,
    picture: tuple[int, int] | None = None,
    *,
    num_new_tokens: int = 4,
    is_streamed: bool = False,
) -> Sequence:
    """`picture`: the positions (start, stop) of one."""
    items: tuple[MediaItem, ...] = ()
    if picture is not None:
        slots = np.arange(*picture)
        item_hash = seq_id.to_bytes(32, "little")
        items = (
            MediaItem(
                modality=Modality.IMAGE, span=picture, slots=slots, hash=item_hash, features={}, num_units=len(slots)
            ),
        )
    token_ids = 1000 * seq_id + np.arange(num_tokens)
    prompt = MultimodalInput(
        token_ids=token_ids, positions=np.arange(num_tokens), next_position=num_tokens, items=items
    )
    params = SamplingParams(max_new_tokens=num_new_tokens, ignore_eos=True)
    return Sequence(seq_id, prompt, params, is_streamed=is_streamed)


def make_scheduler(policy: Recorder, clock: Clock, *sequences: Sequence, budget: int = 64) -> Scheduler:
    config = SchedulerConfig(max_batch_size=8, max_prefill_token_num=budget, session_len=100)
    scheduler = Scheduler(config, BlockPool(64, 4), policy=policy, clock=clock)
    for seq in sequences:
        scheduler.add(seq)
    return scheduler


def step(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.plan_step()
    scheduler.commit_step(plan, {row.seq_id: (7,) for row in plan.rows if row.samples})
    scheduler.check_integrity()
    return plan


def rows(plan: StepPlan) -> list[tuple[int, int, int]]:
    return [(row.seq_id, row.start, row.num_tokens) for row in plan.rows]


def test_a_policy_limits_the_prompt_tokens_of_a_step_beside_its_decode_rows() -> None:
    scheduler = make_scheduler(Recorder([None, 7, 1, 20]), Clock(), make_sequence(1, 10, num_new_tokens=9))
    assert rows(step(scheduler)) == [(1, 0, 10)]
    scheduler.add(make_sequence(2, 40))
    assert rows(step(scheduler)) == [(1, 10, 1), (2, 0, 7)]
    assert rows(step(scheduler)) == [(1, 11, 1), (2, 7, 1)]
    assert rows(step(scheduler)) == [(1, 12, 1), (2, 8, 20)]


def test_the_limits_of_the_scheduler_hold_beside_the_policy() -> None:
    scheduler = make_scheduler(Recorder([1000]), Clock(), make_sequence(1, 4), make_sequence(2, 60), budget=16)
    assert rows(step(scheduler)) == [(1, 0, 4), (2, 0, 12)]
    assert rows(step(scheduler)) == [(1, 4, 1), (2, 12, 15)]


def test_a_policy_is_told_what_goes_on_and_what_waits() -> None:
    policy, clock = Recorder([10, 30, None]), Clock()
    scheduler = make_scheduler(policy, clock, make_sequence(1, 10, is_streamed=True), make_sequence(2, 50))
    clock.now_s = 0.5
    step(scheduler)
    assert policy.prompts[-1] == [WaitingPrompt(0, 10, 0.5), WaitingPrompt(0, 50, 0.5)]
    assert not policy.loads[-1].is_streamed and policy.loads[-1].num_decode_rows == 0
    clock.now_s = 2.0
    scheduler.add(make_sequence(3, 8))
    assert rows(step(scheduler)) == [(1, 10, 1), (2, 0, 30)]
    assert policy.prompts[-1] == [WaitingPrompt(0, 50, 2.0), WaitingPrompt(0, 8, 0.0)]
    clock.now_s = 2.25
    step(scheduler)
    assert policy.prompts[-1] == [WaitingPrompt(30, 20, 2.25), WaitingPrompt(0, 8, 0.25)]
    load = policy.loads[-1]
    assert (load.num_decode_rows, load.num_decode_context, load.is_streamed) == (1, 12, True)
    assert not load.is_encoding


def test_a_prompt_whose_embedding_is_not_there_does_not_count() -> None:
    policy = Recorder([None])
    scheduler = make_scheduler(policy, Clock(), make_sequence(1, 20, (4, 12)), make_sequence(2, 6))
    plan = step(scheduler)
    assert [job.seq_id for job in plan.encode_jobs] == [1] and rows(plan) == [(2, 0, 6)]
    assert policy.prompts[-1] == [WaitingPrompt(0, 6, 0.0)] and not policy.loads[-1].is_encoding
    step(scheduler)
    assert policy.prompts[-1] == [] and policy.loads[-1].is_encoding
    scheduler.mark_ready((1).to_bytes(32, "little"))
    step(scheduler)
    assert policy.prompts[-1] == [WaitingPrompt(0, 20, 0.0)] and not policy.loads[-1].is_encoding


def test_a_chunk_that_ends_at_a_missing_embedding_counts_up_to_it() -> None:
    policy = Recorder([None])
    scheduler = make_scheduler(policy, Clock(), make_sequence(1, 40, (20, 30)), budget=8)
    assert rows(step(scheduler)) == [(1, 0, 8)]
    step(scheduler)
    assert policy.prompts[-1] == [WaitingPrompt(8, 12, 0.0)]


def test_a_policy_may_not_stop_the_engine() -> None:
    scheduler = make_scheduler(Recorder([0]), Clock(), make_sequence(1, 10))
    with pytest.raises(AssertionError, match="allows 0 prompt tokens"):
        scheduler.plan_step()


@pytest.mark.parametrize("seed", range(4))
def test_every_sequence_ends_whatever_a_policy_allows(seed: int) -> None:
    rng = random.Random(seed)
    policy = Recorder([rng.choice([None, 1, 2, 7, 30]) for _ in range(400)])
    lengths = {seq_id: rng.randint(1, 60) for seq_id in range(1, 30)}
    scheduler = make_scheduler(policy, Clock(), *(make_sequence(*each) for each in lengths.items()))
    num_computed = dict.fromkeys(lengths, 0)
    for _ in range(1000):
        for row in step(scheduler).rows:
            assert row.start == num_computed[row.seq_id]
            num_computed[row.seq_id] += row.num_tokens
        if not scheduler.has_work:
            break
    assert num_computed == {seq_id: length + 3 for seq_id, length in lengths.items()}


@pytest.mark.parametrize(
    ("is_streamed", "is_encoding", "limit"),
    [(False, False, None), (True, False, 368), (False, True, 1024), (True, True, 368)],
)
def test_fixed_chunks_depend_on_streams_and_embeddings(is_streamed: bool, is_encoding: bool, limit: int | None) -> None:
    load = StepLoad(
        num_decode_rows=1, num_decode_context=1, is_streamed=is_streamed, is_encoding=is_encoding, prompts=()
    )
    assert FixedChunks(max_streamed_tokens=368, max_encoding_tokens=1024).limit_prompt_tokens(load) == limit
    assert FixedChunks().limit_prompt_tokens(load) is None

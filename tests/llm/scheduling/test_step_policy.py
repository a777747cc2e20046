"""What the scheduler tells a policy about a step, what it does with the answer, and what the policies answer."""

from __future__ import annotations

import random
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import Row, StepPlan
from seesay.llm.plans.step_times import StepCosts, StepTimes, StepWork, count_pairs, measure_work
from seesay.llm.running.step_sizes import token_sizes
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.sequence import Sequence
from seesay.llm.scheduling.step_policy import (
    LEAST_TOKENS,
    MAX_PROMPTS,
    FixedChunks,
    StepLoad,
    StepPolicy,
    TimedSteps,
    WaitingPrompt,
)
from seesay.values import MediaItem, Modality, MultimodalInput


@dataclass
class Recorder:
    """A policy that keeps what it is asked, and answers with `limits` in turn, then with the last one for ever."""

    limits: list[int | None]
    loads: list[StepLoad] = field(default_factory=list)
    prompts: list[list[WaitingPrompt]] = field(default_factory=list)
    observed: list[tuple[int, float]] = field(default_factory=list)

    def observe(self, rows: List[Row], seconds: float) -> None:
        self.observed.append((sum(row.num_tokens for row in rows), seconds))

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


def make_scheduler(policy: StepPolicy, clock: Clock, *sequences: Sequence, budget: int = 64) -> Scheduler:
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
    load = policy.loads[-1]
    assert policy.prompts[-1] == [WaitingPrompt(0, 6, 0.0)] and load.is_encoding, "this plan asks for it"
    step(scheduler)
    load = policy.loads[-1]
    assert policy.prompts[-1] == [] and load.is_encoding
    scheduler.mark_ready((1).to_bytes(32, "little"))
    step(scheduler)
    assert policy.prompts[-1] == [WaitingPrompt(0, 20, 0.0)] and not policy.loads[-1].is_encoding


def test_a_chunk_that_ends_at_a_missing_embedding_counts_up_to_it() -> None:
    policy = Recorder([None])
    scheduler = make_scheduler(policy, Clock(), make_sequence(1, 40, (20, 30)), budget=8)
    assert rows(step(scheduler)) == [(1, 0, 8)]
    step(scheduler)
    assert policy.prompts[-1] == [WaitingPrompt(8, 12, 0.0)]


def test_a_policy_is_told_how_long_steps_took() -> None:
    policy = Recorder([None])
    scheduler = make_scheduler(policy, Clock(), make_sequence(1, 10, is_streamed=True), make_sequence(2, 80))
    assert scheduler.config.max_prefill_token_num == 64
    scheduler.observe_step(step(scheduler), 0.5)  # no answer goes on yet: the tower may be called meanwhile
    scheduler.observe_step(step(scheduler), 0.25)
    assert policy.observed == [(1 + 26, 0.25)]


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


# --- steps sized by time ----------------------------------------------------------------------------------------------

SIZES = token_sizes(4096)
COSTS = StepCosts(
    sizes=SIZES,
    seconds=[1e-3 + 1.9e-5 * size for size in SIZES],
    context_s=2e-8,
    pair_s=1e-9,
    is_padded=True,
    spread=0.2,
)
NUM_ROWS = 64


def make_timed(max_step_s: float = 0.04) -> TimedSteps:
    return TimedSteps(times=StepTimes(COSTS), max_step_s=max_step_s)


def make_load(*prompts: WaitingPrompt, is_streamed: bool = True, is_encoding: bool = False) -> StepLoad:
    return StepLoad(
        num_decode_rows=NUM_ROWS,
        num_decode_context=500 * NUM_ROWS,
        is_streamed=is_streamed,
        is_encoding=is_encoding,
        prompts=iter(prompts),
    )


def waiting(num: int, wait_s: float, start: int = 0) -> list[WaitingPrompt]:
    return [WaitingPrompt(start, 744, wait_s)] * num


def predict(prompts: List[WaitingPrompt], num_tokens: int) -> float:
    """Seconds of a step with the first `num_tokens` of these prompts."""
    pairs, left = 0.0, num_tokens
    for prompt in prompts:
        count = min(left, prompt.num_tokens)
        pairs, left = pairs + count_pairs(prompt.start, count), left - count
    return StepTimes(COSTS).predict(StepWork(NUM_ROWS, 500 * NUM_ROWS, num_tokens, pairs))


def limit(
    timed: TimedSteps, prompts: List[WaitingPrompt], *, is_streamed: bool = True, is_encoding: bool = False
) -> int:
    found = timed.limit_prompt_tokens(make_load(*prompts, is_streamed=is_streamed, is_encoding=is_encoding))
    assert found is not None
    return found


def duration(timed: TimedSteps, prompts: List[WaitingPrompt], **kind: bool) -> float:
    return predict(prompts, limit(timed, prompts, **kind))


@pytest.mark.parametrize("max_step_s", [0.012, 0.025, 0.04])
@pytest.mark.parametrize("start", [0, 30_000])
def test_a_step_has_as_many_tokens_as_its_duration_allows(max_step_s: float, start: int) -> None:
    prompts = waiting(20, 1e6, start)
    found = limit(make_timed(max_step_s), prompts)
    assert predict(prompts, found) <= max_step_s < predict(prompts, found + 1)
    if not start:  # no more attention than tokens: padding is used
        assert found + NUM_ROWS in SIZES


def test_a_step_has_all_that_waits_when_there_is_time() -> None:
    assert limit(make_timed(), [WaitingPrompt(0, 200, 0.0), WaitingPrompt(100, 77, 0.0)]) == 277


def test_a_step_computes_something_however_little_time_there_is() -> None:
    assert limit(make_timed(1e-6), waiting(3, 0.0)) == LEAST_TOKENS
    assert limit(make_timed(), []) == LEAST_TOKENS


def test_steps_have_no_limit_while_nobody_reads() -> None:
    assert make_timed().limit_prompt_tokens(make_load(*waiting(9, 9.0), is_streamed=False)) is None


def test_steps_leave_room_for_calls_of_the_tower() -> None:
    prompts = waiting(40, 1e6)
    timed = make_timed()
    beside = duration(timed, prompts, is_encoding=True)
    assert 0.8 * 0.03 < beside <= 0.03
    assert 0.95 * 0.034 < duration(timed, prompts, is_streamed=False, is_encoding=True) <= 0.034
    assert 0.9 * 0.04 < duration(timed, prompts) <= 0.04


def test_steps_are_short_while_prompts_are_young_and_grow_as_they_age() -> None:
    timed = make_timed()
    young = [duration(timed, waiting(2, wait_s)) for wait_s in (0.0, 0.1, 0.2)]
    assert young[0] == young[1] == young[2] <= 0.012
    old = [duration(timed, waiting(40, wait_s)) for wait_s in (0.8, 5.0, 10.0, 15.0, 20.75, 1e6)]
    assert 0.03 < old[0] <= 0.037 and 0.038 < old[-1] <= 0.04
    assert all(earlier <= later for earlier, later in pairwise(old)) and len(set(old)) >= 4


def test_steps_are_as_long_as_the_deadlines_of_all_prompts_need() -> None:
    timed = make_timed()
    durations = [duration(timed, waiting(count, 0.1)) for count in (1, *range(7, 14))]
    assert all(fewer <= more for fewer, more in pairwise(durations))
    assert durations[0] <= 0.012 and 0.02 < durations[-1] <= 0.036 and len(set(durations)) >= 4
    prompts = waiting(9, 0.1)  # 6,696 tokens in what is left of 50 ms and 0.3 ms for each of the last one's 744
    found, needed_per_s = limit(timed, prompts), 6696 / (0.05 + 0.0003 * 744 - 0.1)
    assert found / predict(prompts, found) >= needed_per_s > (found - 64) / predict(prompts, found - 64)


def test_short_prompts_are_in_time_sooner_than_long_ones() -> None:
    timed = make_timed()
    short = duration(timed, [WaitingPrompt(0, 31, 0.04)] * 48)
    assert short > duration(timed, [WaitingPrompt(0, 744, 0.04)] * 2)
    assert short > duration(timed, [WaitingPrompt(713, 31, 0.04)] * 48), "the last chunks of long prompts"


def test_a_prompt_behind_others_counts_with_those_before_it() -> None:
    """The first prompt has time; the last one has little, but must wait for the first."""
    timed = make_timed()
    alone = duration(timed, [WaitingPrompt(0, 744, 0.24)])
    behind = duration(timed, [*waiting(1, 0.0), WaitingPrompt(0, 744, 0.24)])
    assert alone < behind


def test_prompts_beyond_a_number_are_not_looked_at() -> None:
    prompts = iter([WaitingPrompt(0, 1, 0.0)] * (2 * MAX_PROMPTS))
    load = StepLoad(num_decode_rows=1, num_decode_context=1, is_streamed=True, is_encoding=False, prompts=prompts)
    make_timed().limit_prompt_tokens(load)
    assert len(list(prompts)) == MAX_PROMPTS


prompt_lists = st.lists(
    st.builds(WaitingPrompt, st.integers(0, 50_000), st.integers(1, 5000), st.floats(0, 100)), max_size=40
)


@given(prompt_lists, st.floats(1e-4, 1.0), st.booleans())
def test_no_step_is_predicted_to_take_longer_unless_it_is_minimal(
    prompts: list[WaitingPrompt], max_step_s: float, is_encoding: bool
) -> None:
    found = limit(make_timed(max_step_s), prompts, is_encoding=is_encoding)
    num_tokens = min(found, sum(prompt.num_tokens for prompt in prompts))
    share = 0.75 if is_encoding else 1.0
    assert num_tokens <= LEAST_TOKENS or predict(prompts, num_tokens) <= share * max_step_s * (1 + 1e-9)


@pytest.mark.parametrize("max_step_s", [1e-6, 0.008, 0.04])
@pytest.mark.parametrize("seed", range(3))
def test_no_prompt_starves_beside_streamed_answers(max_step_s: float, seed: int) -> None:
    """Each has all of its tokens after as many steps as minimal chunks of it and of those before it take."""
    rng, clock, timed = random.Random(seed), Clock(), make_timed(max_step_s)
    stream = make_sequence(0, 4, num_new_tokens=10**6, is_streamed=True)
    config = SchedulerConfig(max_batch_size=1000, max_prefill_token_num=8192, session_len=10**6)
    scheduler = Scheduler(config, BlockPool(1000, 64), policy=timed, clock=clock)
    scheduler.add(stream)
    step(scheduler)
    due: dict[int, int] = {}
    num_steps = num_ahead = 0
    for _ in range(600):
        if len(due) < 60 and rng.random() < 0.2:
            seq_id, num_tokens = len(due) + 1, rng.randint(1, 900)
            scheduler.add(make_sequence(seq_id, num_tokens, num_new_tokens=1))
            num_ahead = max(num_ahead, num_steps * LEAST_TOKENS) + num_tokens
            due[seq_id] = -(-num_ahead // LEAST_TOKENS)
        plan = step(scheduler)
        seconds = timed.times.predict(measure_work(plan.rows))
        assert plan.rows[0].seq_id == 0, "the stream goes on in every step"
        assert seconds <= max_step_s or measure_work(plan.rows).num_prompt_tokens <= LEAST_TOKENS
        clock.now_s += seconds
        num_steps += 1
        assert all(seq_id not in scheduler.sequences for seq_id, last in due.items() if last <= num_steps)
    assert len(due) == 60 and max(due.values()) <= num_steps


def test_steps_with_prompts_correct_the_predictions() -> None:
    timed, work = make_timed(), StepWork(1, 10, 512, count_pairs(0, 512))
    decode = Row(seq_id=0, start=9, num_tokens=1, samples=True)
    prompt = Row(seq_id=1, start=0, num_tokens=512, samples=True)
    before = timed.times.predict(work)
    for _ in range(20):
        timed.observe([decode], 2 * before)
    assert timed.times.predict(work) == before
    for _ in range(20):
        timed.observe([decode, prompt], 2 * before)
    assert timed.times.predict(work) == pytest.approx(2 * before, rel=0.05)


def test_what_to_do_takes_no_time_worth_mentioning() -> None:
    """However many prompts wait, the durations predicted for one step are few."""
    counted = CountedTimes(COSTS)
    timed = TimedSteps(times=counted, max_step_s=0.04)
    for num, wait_s in ((1, 0.0), (40, 0.3), (5000, 0.0), (5000, 9.0)):
        counted.num_predictions = 0
        timed.limit_prompt_tokens(make_load(*waiting(num, wait_s)))
        assert counted.num_predictions <= 50


class CountedTimes(StepTimes):
    num_predictions = 0

    def predict(self, work: StepWork) -> float:
        self.num_predictions += 1
        return super().predict(work)
